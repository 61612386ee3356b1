import type { Figures } from './measure.ts'

const TITLE = 'Requests a second, as a share of bare node:http'
const WIDTH = 800
const LABEL = 400
const BAR_HEIGHT = 20
const STEP = 30
const TOP = 44
const FULL = WIDTH - LABEL - 60

/** Bars of the share of bare, as SVG: readable on a light page and on a dark one. */
export function chart(results: Readonly<Record<string, Figures>>, subtitle: string): string {
  const bars = Object.values(results).flatMap(({ title, rows }) => {
    const share = rows.find(({ server }) => server === 'plant-store')?.shareOfBare
    return share === undefined ? [] : [{ title, share }]
  })
  // With one connection a share above 1 happens by chance.
  const scale = FULL / Math.max(1, ...bars.map(({ share }) => share))
  const height = TOP + bars.length * STEP + 30
  const lines = bars.map(({ title, share }, i) => {
    const y = TOP + i * STEP
    const end = LABEL + share * scale
    const bar = `width="${(end - LABEL).toFixed(1)}" height="${BAR_HEIGHT}" fill="#2f7d4f"`
    return (
      `<text x="${LABEL - 8}" y="${y + 15}" text-anchor="end">${escape(title)}</text>` +
      `<rect x="${LABEL}" y="${y}" ${bar}/>` +
      `<text x="${(end + 6).toFixed(1)}" y="${y + 15}">${share.toFixed(2)}</text>`
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
