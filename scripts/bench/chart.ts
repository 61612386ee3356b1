import type { Figures } from './measure.ts'

const TITLE = 'Requests a second, as a share of bare node:http'
const WIDTH = 800
const LABEL = 400
const BAR_HEIGHT = 16
const STEP = 20
const TOP = 44
const FULL = WIDTH - LABEL - 60
/** How the programs of another run are shown, by their name there. */
const PEERS = [
  ['go', 'Go, SQLite in C', '#8a8f98'],
  ['fastify+cache+group', 'Fastify, batched', '#b9bdc4'],
] as const

/** By workload and program, requests a second; `bare` is among the programs. */
export type Peers = Readonly<Record<string, Readonly<Record<string, { readonly rps: number }>>>>

interface Bar {
  readonly title: string
  readonly share: number
  readonly color: string
}

/** Bars of the share of bare, as SVG: readable on a light page and on a dark one. */
export function chart(
  results: Readonly<Record<string, Figures>>,
  subtitle: string,
  peers: Peers = {},
): string {
  const bars = Object.entries(results).flatMap(([name, { title, rows }]): Bar[] => {
    const share = rows.find(({ server }) => server === 'plant-store')?.shareOfBare
    if (share === undefined) return []
    const rateOf = (peer: string): number => peers[name]?.[peer]?.rps ?? 0
    const others = PEERS.map(([peer, text, color]): Bar => {
      return { title: text, share: rateOf(peer) / (rateOf('bare') || 1), color }
    })
    return [{ title, share, color: '#2f7d4f' }, ...others.filter((bar) => bar.share > 0)]
  })
  // With one connection a share above 1 happens by chance.
  const scale = FULL / Math.max(1, ...bars.map(({ share }) => share))
  const height = TOP + bars.length * STEP + 30
  const lines = bars.map(({ title, share, color }, i) => {
    const y = TOP + i * STEP
    const end = LABEL + share * scale
    const bar = `width="${(end - LABEL).toFixed(1)}" height="${BAR_HEIGHT}" fill="${color}"`
    return (
      `<text x="${LABEL - 8}" y="${y + 13}" text-anchor="end">${escape(title)}</text>` +
      `<rect x="${LABEL}" y="${y}" ${bar}/>` +
      `<text x="${(end + 6).toFixed(1)}" y="${y + 13}">${share.toFixed(2)}</text>`
    )
  })
  const limit = (LABEL + scale).toFixed(1)
  const size = `width="${WIDTH}" height="${height}" viewBox="0 0 ${WIDTH} ${height}"`
  const dashed = 'stroke="#888" stroke-dasharray="4 3"'
  const style = 'font-family="sans-serif" font-size="13" fill="#222"'
  return `<svg xmlns="http://www.w3.org/2000/svg" ${size} ${style}>
<rect width="${WIDTH}" height="${height}" fill="#fff"/>
<text x="16" y="24" font-size="15" font-weight="bold">${TITLE}</text>
${lines.join('\n')}
<line x1="${limit}" y1="${TOP - 6}" x2="${limit}" y2="${height - 28}" ${dashed}/>
<text x="16" y="${height - 10}" font-size="11" fill="#666">${escape(subtitle)}</text>
</svg>
`
}

function escape(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}
