/*
 * Measures the built service beside a bare node:http server: `make bench WORKLOADS='get20 post'`.
 * Server on one core, load on the other; runs in turn, medians. Answers are checked before they are
 * counted, and any error under load ends the run. Environment: DUR (seconds for a run), RUNS, and
 * NODE_ARGS (for the service: `--cpu-prof`, for example).
 */
import { existsSync } from 'node:fs'
import { cpus } from 'node:os'
import { reasonOf } from '../dist/errors.js'
import { exitOnSignals } from '../test/support/launch.ts'
import { cautions } from './bench/machine.ts'
import { Bench } from './bench/measure.ts'
import { WORKLOADS } from './bench/workloads.ts'
import { refuse, wholeNumber } from './variables.ts'

async function main(): Promise<void> {
  const seconds = wholeNumber('DUR', 3, 1, 60)
  const runs = wholeNumber('RUNS', 3, 1, 20)
  const wanted = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(WORKLOADS)
  const stray = wanted.find((name) => !Object.hasOwn(WORKLOADS, name))
  if (stray !== undefined)
    refuse(`there is no workload ${stray}: ${Object.keys(WORKLOADS).join(' ')}`)
  if (!existsSync('/proc/self/status'))
    refuse('CPU and memory are read from /proc, which only Linux has')
  const { length, [0]: cpu } = cpus()
  console.log(`${cpu?.model}, ${length} cores, Node ${process.version}`)
  console.log(`${runs} runs of ${seconds} s, medians`)
  for (const caution of cautions()) console.log(`caution: ${caution}`)
  const bench = new Bench(seconds, runs)
  for (const name of wanted) {
    console.log(`\n${name}:`)
    await WORKLOADS[name]?.(bench)
  }
}

exitOnSignals()
await main().catch((error: unknown) => {
  console.error(`bench: ${reasonOf(error)}`)
  process.exitCode = 1
})
process.exit()
