export interface Sample {
  readonly seconds: number
  readonly residentMiB: number
  /** What is not backed by files: heaps, the database, stacks. */
  readonly anonymousMiB: number
}

const WIDTH = 800
const HEIGHT = 300
const [LEFT, RIGHT, TOP, BOTTOM] = [60, 20, 40, 40]

/** Both curves over time, as SVG. */
export function drawCurve(samples: readonly Sample[], title: string): string {
  const seconds = samples.at(-1)?.seconds ?? 1
  const top = Math.ceil(Math.max(...samples.map(({ residentMiB }) => residentMiB)) / 50) * 50
  const x = (at: number): number => LEFT + (at / seconds) * (WIDTH - LEFT - RIGHT)
  const y = (mib: number): number => HEIGHT - BOTTOM - (mib / top) * (HEIGHT - TOP - BOTTOM)
  const line = (value: (sample: Sample) => number, colour: string): string =>
    `<polyline fill="none" stroke="${colour}" stroke-width="1.5" points="${samples.map((sample) => `${x(sample.seconds).toFixed(1)},${y(value(sample)).toFixed(1)}`).join(' ')}"/>`
  const grid = Array.from(
    { length: top / 50 + 1 },
    (_, at) =>
      `<line x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${y(at * 50)}" y2="${y(at * 50)}" stroke="#ddd"/><text x="${LEFT - 6}" y="${y(at * 50) + 4}" text-anchor="end">${at * 50}</text>`,
  )
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${WIDTH}" height="${HEIGHT}" viewBox="0 0 ${WIDTH} ${HEIGHT}" font-family="sans-serif" font-size="12" fill="#222">
<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>
<text x="16" y="24" font-size="14" font-weight="bold">${title}</text>
${grid.join('\n')}
${line(({ residentMiB }) => residentMiB, '#2f7d4f')}
${line(({ anonymousMiB }) => anonymousMiB, '#7d2f5d')}
<text x="${LEFT}" y="${HEIGHT - 12}" font-size="11" fill="#666">MiB over ${Math.round(seconds)} s: resident (green), of which not backed by files (red)</text>
</svg>
`
}

/** A few rows, evenly spread. */
export function tabulate(samples: readonly Sample[]): string {
  const step = Math.max(1, Math.floor(samples.length / 20))
  const scale = 60 / Math.max(...samples.map(({ residentMiB }) => residentMiB))
  const rows = samples
    .filter((_, at) => at % step === 0)
    .map(
      ({ seconds, residentMiB, anonymousMiB }) =>
        `${seconds.toFixed(0).padStart(6)} s ${residentMiB.toFixed(1).padStart(7)} MiB, anonymous ${anonymousMiB.toFixed(1).padStart(6)} ${'#'.repeat(Math.round(residentMiB * scale))}`,
    )
  return rows.join('\n')
}
