import type { Memory } from '../test/support/memory.ts'

export interface Sample extends Memory {
  readonly seconds: number
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
  const line = (value: (sample: Sample) => number, colour: string): string => {
    const points = samples.map(
      (sample) => `${x(sample.seconds).toFixed(1)},${y(value(sample)).toFixed(1)}`,
    )
    return `<polyline fill="none" stroke="${colour}" points="${points.join(' ')}"/>`
  }
  const grid = Array.from({ length: top / 50 + 1 }, (_, at) => {
    const height = y(at * 50)
    const line = `x1="${LEFT}" x2="${WIDTH - RIGHT}" y1="${height}" y2="${height}" stroke="#ddd"`
    const label = `<text x="${LEFT - 6}" y="${height + 4}" text-anchor="end">${at * 50}</text>`
    return `<line ${line}/>${label}`
  })
  const legend = `MiB over ${Math.round(seconds)} s: resident (green), of that not in files (red)`
  const style = 'font-family="sans-serif" font-size="12" fill="#222"'
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" ${style}>
<rect width="${WIDTH}" height="${HEIGHT}" fill="#fff"/>
<text x="16" y="24" font-size="14" font-weight="bold">${title}</text>
${grid.join('\n')}
${line(({ residentMiB }) => residentMiB, '#2f7d4f')}
${line(({ anonymousMiB }) => anonymousMiB, '#7d2f5d')}
<text x="${LEFT}" y="${HEIGHT - 12}" font-size="11" fill="#666">${legend}</text>
</svg>
`
}

/** A few rows, evenly spread. */
export function tabulate(samples: readonly Sample[]): string {
  const step = Math.max(1, Math.floor(samples.length / 20))
  const scale = 60 / Math.max(...samples.map(({ residentMiB }) => residentMiB))
  const cell = (value: number, digits: number): string => value.toFixed(digits).padStart(7)
  const rows = samples
    .filter((_, at) => at % step === 0)
    .map(({ seconds, residentMiB, anonymousMiB }) => {
      const bar = '#'.repeat(Math.round(residentMiB * scale))
      const shown = `${cell(residentMiB, 1)} MiB, anonymous ${cell(anonymousMiB, 1)}`
      return `${cell(seconds, 0)} s ${shown} ${bar}`
    })
  return rows.join('\n')
}
