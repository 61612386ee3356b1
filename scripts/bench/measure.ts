import { type ChildProcess, fork, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { memoryOf } from '../../test/support/memory.ts'
import { median } from '../figures.ts'
import type { LoadResult, LoadSpec } from './load.ts'
import { cpuSeconds } from './machine.ts'
import type { Filling } from './plants.ts'
import type { Ask } from './requests.ts'
import { type Server, start } from './processes.ts'

const WARM_SECONDS = 1
const COLUMNS = ['requests/s', 'of first', 'p50 µs', 'p99 µs', 'CPU µs', 'RSS MiB']

/** Figures of a run; times are microseconds. */
interface Run {
  readonly perSecond: number
  readonly p50: number
  readonly p99: number
  /** Of the server, for each request. */
  readonly cpu: number
}

export class Bench {
  readonly #seconds: number
  readonly #runs: number
  /** One for all runs: its code is warm after the first. */
  readonly #generator: ChildProcess
  readonly #generatorEnded: Promise<unknown>

  constructor(seconds: number, runs: number) {
    this.#seconds = seconds
    this.#runs = runs
    this.#generator = fork(fileURLToPath(new URL('load.ts', import.meta.url)), {
      // V8's helper threads would share the core with the load.
      execArgv: ['--import', 'tsx', '--expose-gc', '--single-threaded-gc'],
    })
    this.#generatorEnded = once(this.#generator, 'exit')
  }

  /** The plant store beside the bare server. */
  async compare(title: string, filling: Filling, kind: Ask['kind'], limit = 20): Promise<void> {
    const servers = [await start('bare', filling), await start('plant-store', filling)]
    await this.inTurn(title, servers, { kind, limit, ...filling, connections: 64 })
    for (const server of servers) await server.stop()
  }

  /** Warms servers up, measures them in turn, and prints a line for each. */
  async inTurn(title: string, servers: readonly Server[], ask: Ask): Promise<void> {
    const measured = servers.map((server) => ({ server, runs: [] as Run[] }))
    for (const server of servers) await this.#run(server, ask, WARM_SECONDS)
    for (let i = 0; i < this.#runs; i++) {
      for (const { server, runs } of measured) {
        spawnSync('sync')
        runs.push(await this.#run(server, ask, this.#seconds))
      }
    }
    print(title, COLUMNS)
    let first: number | undefined
    for (const { server, runs } of measured) {
      const of = (key: keyof Run): number => median(runs.map((run) => run[key]))
      const perSecond = of('perSecond')
      const share = (perSecond / (first ??= perSecond)).toFixed(2)
      const micros = [of('p50').toFixed(0), of('p99').toFixed(0), of('cpu').toFixed(1)]
      const { residentMiB } = memoryOf(server.pid)
      print(server.name, [perSecond.toFixed(0), share, ...micros, residentMiB.toFixed(1)])
    }
  }

  async #run(server: Server, ask: Ask, seconds: number): Promise<Run> {
    const { port, pid, made } = server
    const cpuBefore = cpuSeconds(pid)
    const spec: LoadSpec = { port, ask, made, seconds }
    this.#generator.send(spec)
    const message = once(this.#generator, 'message')
    const isOver = await Promise.race([message, this.#generatorEnded.then(() => undefined)])
    if (!isOver) throw new Error(`${server.name}, ${ask.kind}: ${server.lastLines()}`)
    // The load generator sends nothing else.
    const [result] = isOver as [LoadResult]
    server.made += result.requests + ask.connections
    const cpu = ((cpuSeconds(pid) - cpuBefore) * 1e6) / result.requests
    return { perSecond: result.requests / result.seconds, p50: result.p50, p99: result.p99, cpu }
  }
}

function print(name: string, cells: readonly string[]): void {
  console.log(name.padEnd(44) + cells.map((cell) => cell.padStart(11)).join(''))
}
