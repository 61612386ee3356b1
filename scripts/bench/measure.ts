import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { reasonOf } from '../../dist/errors.js'
import { median } from '../figures.ts'
import type { LoadGenerator } from './generator.ts'
import type { LoadResult } from './load.ts'
import { busySeconds, cpuSeconds } from './machine.ts'
import { type Server, start } from './processes.ts'
import type { Asked } from './requests.ts'
import type { Filling } from './stores.ts'

/**
 * A run is repeated if others used more of a core than this: nothing else should work meanwhile,
 * except for the disk's threads.
 */
const OTHERS_MAX = { reading: 0.06, writing: 0.2 } as const
const REPEATS_A_RUN = 3
/** On a machine that is never quiet the benchmark must end too. */
const REPEATS_IN_ALL = 15
const REPEAT_AFTER_MS = 2000
/** A load generator that works this much of the time may be what is measured. */
const LOAD_SHARE_MAX = 0.95

export interface BenchOptions {
  readonly seconds: number
  readonly warmSeconds: number
  readonly runs: number
}

/** Medians of the runs; latencies in microseconds. */
export interface Row extends Run {
  readonly server: string
  /** Of the bare server's requests per second. */
  readonly shareOfBare: number | undefined
  readonly rssMiB: number
  /** Requests per second of each run. */
  readonly runs: readonly number[]
}

export interface Figures {
  readonly title: string
  readonly rows: readonly Row[]
  /** Figures that have no column. */
  readonly values: Readonly<Record<string, number>>
  readonly notes: readonly string[]
}

export interface Run {
  readonly requestsPerSecond: number
  readonly p50: number
  readonly p99: number
  readonly p999: number
  readonly cpuMicrosPerRequest: number
  /** What others used of a core meanwhile. */
  readonly othersShare: number
  readonly loadShare: number
}

/** What a workload asks for, except for what changes from run to run. */
export type Ask = Omit<Asked, 'offset' | 'mayRepeat'> & { readonly connections: number }

/** CPU time since the meter was started. */
export interface Used {
  /** The server's. */
  readonly cpuSeconds: number
  readonly othersShare: number
}

export class Bench {
  readonly settings: BenchOptions
  readonly #generator: LoadGenerator
  /** How many requests each server got, with those that opened connections. */
  readonly #made = new Map<Server, number>()
  #repeats = 0

  constructor(settings: BenchOptions, generator: LoadGenerator) {
    this.settings = settings
    this.#generator = generator
  }

  made(server: Server): number {
    return this.#made.get(server) ?? 0
  }

  /** One run; a failure names the server and what it wrote last. */
  async run(server: Server, ask: Ask, seconds: number): Promise<LoadResult> {
    const [{ port, name }, offset] = [server, this.made(server)]
    try {
      const spec = { ...ask, port, offset, mayRepeat: name === 'bare', seconds }
      const result = await this.#generator.run(spec)
      this.#made.set(server, offset + result.requests + ask.connections)
      return result
    } catch (error) {
      const state = server.ended === undefined ? 'still runs' : `ended with ${server.ended}`
      const which = `${name} (which ${state}), ${ask.kind}`
      throw new Error(`${which}: ${reasonOf(error)}\n${lastLines(server)}`)
    }
  }

  /** A run that is not counted: code gets compiled, pages and tokens get cached. */
  async warm(server: Server, ask: Ask): Promise<void> {
    await this.run(server, ask, this.settings.warmSeconds)
  }

  /** One run, repeated while others used the machine. */
  async measure(server: Server, ask: Ask): Promise<Run> {
    const writes = ask.kind === 'post' || ask.kind === 'mixed'
    const othersMax = writes ? OTHERS_MAX.writing : OTHERS_MAX.reading
    for (let attempt = 1; ; attempt++) {
      const meter = this.meter(server)
      const result = await this.run(server, ask, this.settings.seconds)
      const run = runOf(result, meter())
      const isLast = attempt > REPEATS_A_RUN || this.#repeats >= REPEATS_IN_ALL
      if (run.othersShare <= othersMax || isLast) return run
      this.#repeats += 1
      const share = run.othersShare.toFixed(2)
      console.log(`  ${server.name}: others used ${share} of a core, run repeated`)
      await sleep(REPEAT_AFTER_MS)
    }
  }

  /** Starts to count CPU time; the function that it returns ends that. */
  meter(server: Server): () => Used {
    const read = (): { readonly server: number; readonly others: number } => {
      const used = cpuSeconds(server.pid)
      const ours = used + cpuSeconds('self') + cpuSeconds(this.#generator.pid)
      return { server: used, others: busySeconds() - ours }
    }
    const [startedAtMs, before] = [performance.now(), read()]
    return () => {
      const after = read()
      const seconds = (performance.now() - startedAtMs) / 1000
      return {
        cpuSeconds: after.server - before.server,
        othersShare: (after.others - before.others) / seconds,
      }
    }
  }

  /** Warms all servers up, and measures them in turn. */
  async inTurn(
    servers: readonly (readonly [server: Server, name: string])[],
    ask: Ask,
    measure = (server: Server): Promise<Run> => this.measure(server, ask),
  ): Promise<Row[]> {
    const measured = servers.map(([server, name]) => ({ server, name, runs: [] as Run[] }))
    for (const { server } of measured) await this.warm(server, ask)
    for (let i = 0; i < this.settings.runs; i++) {
      for (const { server, runs } of measured) {
        spawnSync('sync')
        runs.push(await measure(server))
      }
    }
    return rowsOf(
      measured.map(({ server, name, runs }) => ({ server: name, rssMiB: server.rssMiB, runs })),
    )
  }

  /** The bare server and the plant store. `end` checks the plant store when all is done. */
  async compare(
    title: string,
    filling: Filling,
    ask: Ask,
    end?: (server: Server) => Promise<void>,
  ): Promise<Figures> {
    const bare = await start('bare', filling)
    const ours = await start('plant-store', filling)
    const servers = [bare, ours].map((server) => [server, server.name] as const)
    const rows = await this.inTurn(servers, ask)
    await end?.(ours)
    for (const [server] of servers) await server.stop()
    return { title, rows, values: {}, notes: doubts(rows) }
  }
}

export function runOf(result: LoadResult, used: Used): Run {
  const { requests, seconds, p50, p99, p999, loadShare } = result
  return {
    requestsPerSecond: requests / seconds,
    cpuMicrosPerRequest: (used.cpuSeconds * 1e6) / requests,
    p50,
    p99,
    p999,
    loadShare,
    othersShare: used.othersShare,
  }
}

/** What a server logged last, without its requests. */
function lastLines({ logFile }: Server): string {
  const lines = readFileSync(logFile, 'utf8').split('\n')
  return lines
    .filter((line) => !line.includes('"message":"request"'))
    .slice(-10)
    .join('\n')
}

type Measured = Pick<Row, 'server' | 'rssMiB'> & { readonly runs: readonly Run[] }

export function rowsOf(measured: readonly Measured[]): Row[] {
  const of = (runs: readonly Run[], key: keyof Run): number => median(runs.map((run) => run[key]))
  const bare = measured.find(({ server }) => server === 'bare')
  const limit = bare && of(bare.runs, 'requestsPerSecond')
  return measured.map(({ server, rssMiB, runs }) => {
    const requestsPerSecond = of(runs, 'requestsPerSecond')
    return {
      server,
      requestsPerSecond,
      shareOfBare: limit === undefined ? undefined : requestsPerSecond / limit,
      p50: Math.round(of(runs, 'p50')),
      p99: Math.round(of(runs, 'p99')),
      p999: Math.round(of(runs, 'p999')),
      cpuMicrosPerRequest: of(runs, 'cpuMicrosPerRequest'),
      rssMiB,
      runs: runs.map((run) => Math.round(run.requestsPerSecond)),
      othersShare: of(runs, 'othersShare'),
      loadShare: of(runs, 'loadShare'),
    }
  })
}

/** What makes figures less certain than they look. */
export function doubts(rows: readonly Row[]): string[] {
  const notes: string[] = []
  for (const { server, loadShare, othersShare } of rows) {
    const percent = Math.round(loadShare * 100)
    if (loadShare > LOAD_SHARE_MAX)
      notes.push(
        `${server}: the load generator worked ${percent}% of the time: it may be the limit`,
      )
    if (othersShare > OTHERS_MAX.writing)
      notes.push(`${server}: others used ${othersShare.toFixed(2)} of a core meanwhile`)
  }
  return notes
}
