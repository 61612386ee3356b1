/*
 * Measures the built service beside a bare node:http server: `make bench WORKLOADS='get20 post'
 * CHART=file.svg`. Server on one core, load on the other; runs in turn, medians. Answers are
 * checked before they are counted, and any error under load ends the run. Environment: DUR and WARM
 * (seconds for a run and before the first), RUNS, OUT (JSON), CHART (SVG), PEERS (JSON: the rates
 * of other programs, by workload, `bare` among them).
 */
import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { reasonOf } from '../dist/errors.js'
import { exitOnSignals } from '../test/support/launch.ts'
import { chart, type Peers } from './bench/chart.ts'
import { LoadGenerator } from './bench/generator.ts'
import { caveats, describeMachine } from './bench/machine.ts'
import { Bench, type BenchOptions, type Figures, type Row } from './bench/measure.ts'
import { WORKLOADS } from './bench/workloads.ts'
import { refuse, wholeNumber } from './variables.ts'

const SECONDS_MAX = 60
const RUNS_MAX = 20
const COLUMNS = 'requests/s,of bare,p50 µs,p99 µs,p999 µs,CPU µs,RSS MiB'.split(',')

function tableLine(workload: string, server: string, cells: readonly string[]): string {
  const shown = cells.map((cell) => cell.padStart(10)).join(' ')
  return `${workload.padEnd(11)} ${server.padEnd(16)} ${shown}`
}

function cellsOf(row: Row): string[] {
  const { requestsPerSecond, shareOfBare, p50, p99, p999, cpuMicrosPerRequest, rssMiB } = row
  // A list of everything is one request, and takes a second.
  const rate = requestsPerSecond.toFixed(requestsPerSecond < 100 ? 2 : 0)
  const share = shareOfBare?.toFixed(2) ?? ''
  const latencies = [p50, p99, p999].map(String)
  return [rate, share, ...latencies, cpuMicrosPerRequest.toFixed(1), rssMiB.toFixed(1)]
}

function show(workload: string, { title, rows, notes }: Figures): void {
  console.log('')
  console.log(`${title}:`)
  if (rows.length > 0) console.log(tableLine('workload', '', COLUMNS))
  for (const row of rows) console.log(tableLine(workload, row.server, cellsOf(row)))
  for (const note of notes) console.log(`${''.padEnd(11)} ${note}`)
}

async function main(): Promise<void> {
  const settings: BenchOptions = {
    seconds: wholeNumber('DUR', 3, 1, SECONDS_MAX),
    warmSeconds: wholeNumber('WARM', 1, 1, SECONDS_MAX),
    runs: wholeNumber('RUNS', 3, 1, RUNS_MAX),
  }
  const wanted = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(WORKLOADS)
  const stray = wanted.find((name) => !Object.hasOwn(WORKLOADS, name))
  if (stray !== undefined)
    refuse(`there is no workload ${stray}: ${Object.keys(WORKLOADS).join(' ')}`)
  if (!existsSync('/proc/self/status'))
    refuse('CPU and memory are read from /proc, which only Linux has')
  const machine = describeMachine()
  const { cpu, cores, node, kernel, date } = machine
  const where = `${cpu}, ${cores} cores, Node ${node}, Linux ${kernel}, ${date}`
  console.log(`${where}; ${settings.runs} runs of ${settings.seconds} s, medians`)
  for (const caveat of caveats()) console.log(`caution: ${caveat}`)
  const generator = new LoadGenerator()
  const bench = new Bench(settings, generator)
  const results: Record<string, Figures> = {}
  for (const name of wanted) {
    const figures = await WORKLOADS[name]?.(bench)
    if (!figures) continue
    results[name] = figures
    show(name, figures)
  }
  generator.close()
  const out = process.env['OUT'] || 'bench.json'
  const report = { machine, settings, caveats: caveats(), results }
  writeFileSync(out, `${JSON.stringify(report, null, 2)}\n`)
  console.log(`\nwritten: ${out}`)
  const chartFile = process.env['CHART']
  if (!chartFile) return
  const peersFile = process.env['PEERS']
  // What is not in it is not drawn.
  const peers = peersFile ? (JSON.parse(readFileSync(peersFile, 'utf8')) as Peers) : {}
  writeFileSync(chartFile, chart(results, `${where}; server on one core, load on the other`, peers))
  console.log(`written: ${chartFile}`)
}

exitOnSignals()
await main().catch((error: unknown) => {
  console.error(`bench: ${reasonOf(error)}`)
  process.exitCode = 1
})
process.exit()
