import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { median } from './figures.ts'
import type { LoadResult, LoadSpec } from './load.ts'
import { busySeconds, cpuSeconds, rssMiB } from './machine.ts'
import { launch, type Load, type Server, stop } from './processes.ts'
import type { Asked } from './requests.ts'
import type { Filling } from './stores.ts'

/**
 * Above this share of a core used by others a run is repeated: nobody else is meant to work
 * meanwhile, but for the disk's own threads.
 */
const OTHERS_MAX = { reading: 0.06, writing: 0.2 } as const
const REPEATS_A_RUN = 3
/** On a machine that is never quiet, figures come late enough as it is. */
const REPEATS_IN_ALL = 15
const REPEAT_AFTER_MS = 2000
/** A load generator that works so much of the time may be what is measured. */
const LOAD_SHARE_MAX = 0.95

export interface Settings {
  readonly seconds: number
  readonly warmSeconds: number
  readonly runs: number
}

/** Medians over the runs; latencies in microseconds. */
export interface Row {
  readonly server: string
  readonly requestsPerSecond: number
  /** Of the bare server's requests per second. */
  readonly shareOfBare: number | undefined
  readonly p50: number
  readonly p99: number
  readonly p999: number
  readonly cpuMicrosPerRequest: number
  readonly rssMiB: number
  /** Requests per second of each run. */
  readonly runs: readonly number[]
  /** What others used of a core meanwhile. */
  readonly othersShare: number
  readonly loadShare: number
}

export interface Figures {
  readonly title: string
  readonly rows: readonly Row[]
  /** What the columns have no room for. */
  readonly values: Readonly<Record<string, number>>
  readonly notes: readonly string[]
}

export type Run = Pick<LoadResult, 'p50' | 'p99' | 'p999' | 'loadShare'> & {
  readonly requestsPerSecond: number
  readonly cpuMicrosPerRequest: number
  readonly othersShare: number
}

/** What a workload asks for, but for what changes from run to run. */
export type Ask = Omit<Asked, 'offset' | 'mayRepeat'> & { readonly connections: number }

export class Bench {
  readonly settings: Settings
  readonly load: Load
  readonly #tell: (line: string) => void
  readonly #offsets = new Map<Server, number>()
  #repeats = 0

  constructor(settings: Settings, load: Load, tell: (line: string) => void) {
    this.settings = settings
    this.load = load
    this.#tell = tell
  }

  spec(server: Server, ask: Ask, seconds: number): Omit<LoadSpec, 'id'> {
    return {
      ...ask,
      port: server.port,
      offset: this.offset(server),
      mayRepeat: server.name === 'bare',
      seconds,
      pauseMs: 0,
      samples: false,
    }
  }

  /**
   * A run whose failure says which server it was, and what that wrote last. `stop` ends it before
   * its time.
   */
  run(
    server: Server,
    spec: Omit<LoadSpec, 'id'>,
  ): { readonly result: Promise<LoadResult>; stop(): void } {
    const { result, stop: end } = this.load.run(spec)
    const explained = result.catch((error: unknown) => {
      const { exitCode, signalCode } = server.child
      const state =
        exitCode === null && signalCode === null
          ? 'still runs'
          : `ended with ${exitCode ?? signalCode}`
      throw new Error(
        `${server.name} (which ${state}), ${spec.kind}: ${error instanceof Error ? error.message : String(error)}\n${lastLines(server)}`,
      )
    })
    return { result: explained, stop: end }
  }

  /** How many requests were made of a server, the ones that opened connections included. */
  offset(server: Server): number {
    return this.#offsets.get(server) ?? 0
  }

  made(server: Server, requests: number): void {
    this.#offsets.set(server, this.offset(server) + requests)
  }

  /** A run that nobody counts: the code gets compiled, pages and tokens remembered. */
  async warm(server: Server, ask: Ask): Promise<void> {
    const { requests } = await this.run(server, this.spec(server, ask, this.settings.warmSeconds))
      .result
    this.made(server, requests + ask.connections)
  }

  /** One run, repeated while others used the machine. */
  async measure(server: Server, ask: Ask): Promise<Run> {
    const othersMax =
      ask.kind === 'post' || ask.kind === 'mixed' ? OTHERS_MAX.writing : OTHERS_MAX.reading
    for (let attempt = 1; ; attempt++) {
      const meter = this.meter(server)
      const result = await this.run(server, this.spec(server, ask, this.settings.seconds)).result
      const { cpuSeconds: used, othersShare } = meter()
      this.made(server, result.requests + ask.connections)
      if (othersShare <= othersMax || attempt > REPEATS_A_RUN || this.#repeats >= REPEATS_IN_ALL) {
        const { requests, p50, p99, p999, loadShare } = result
        return {
          requestsPerSecond: requests / result.seconds,
          cpuMicrosPerRequest: (used * 1e6) / requests,
          p50,
          p99,
          p999,
          loadShare,
          othersShare,
        }
      }
      this.#repeats += 1
      this.#tell(`  ${server.name}: others used ${othersShare.toFixed(2)} of a core, run repeated`)
      await sleep(REPEAT_AFTER_MS)
    }
  }

  /**
   * Starts to count; what it returns ends that, and tells what the server used, and what others did
   * of a core.
   */
  meter(server: Server): () => { readonly cpuSeconds: number; readonly othersShare: number } {
    const read = (): { readonly server: number; readonly others: number } => {
      const used = cpuSeconds(server.pid)
      return {
        server: used,
        others: busySeconds() - used - cpuSeconds('self') - cpuSeconds(this.load.pid),
      }
    }
    const [startedAt, before] = [performance.now(), read()]
    return () => {
      const after = read()
      return {
        cpuSeconds: after.server - before.server,
        othersShare: ((after.others - before.others) * 1000) / (performance.now() - startedAt),
      }
    }
  }

  /**
   * Both servers warmed up, then measured in turn. `end` looks at the plant store when all is done.
   */
  async compare(
    title: string,
    filling: Filling,
    ask: Ask,
    end?: (server: Server) => Promise<void>,
  ): Promise<Figures> {
    const servers = [await launch('bare', filling), await launch('plant-store', filling)]
    for (const server of servers) await this.warm(server, ask)
    const measured = new Map<Server, Run[]>(servers.map((server) => [server, []]))
    for (let i = 0; i < this.settings.runs; i++) {
      for (const [server, all] of measured) {
        spawnSync('sync')
        all.push(await this.measure(server, ask))
      }
    }
    const rows = rowsOf(
      servers.map((server) => ({
        server: server.name,
        rssMiB: rssMiB(server.pid),
        runs: measured.get(server) ?? [],
      })),
    )
    for (const server of servers) {
      if (server.name === 'plant-store') await end?.(server)
      await stop(server)
    }
    return { title, rows, values: {}, notes: doubts(rows) }
  }
}

/** What a server logged last, but for its requests. */
function lastLines({ logFile }: Server): string {
  return readFileSync(logFile, 'utf8')
    .split('\n')
    .filter((line) => !line.includes('"message":"request"'))
    .slice(-10)
    .join('\n')
}

export interface Measured {
  readonly server: string
  readonly rssMiB: number
  readonly runs: readonly Run[]
}

/** The bare server's runs come first, where there are any. */
export function rowsOf(measured: readonly Measured[]): Row[] {
  const of = (runs: readonly Run[], key: keyof Run): number => median(runs.map((run) => run[key]))
  const bare = measured.find(({ server }) => server === 'bare')
  const limit = bare && of(bare.runs, 'requestsPerSecond')
  return measured.map(({ server, rssMiB: rss, runs }) => {
    const requestsPerSecond = of(runs, 'requestsPerSecond')
    return {
      server,
      requestsPerSecond,
      shareOfBare: limit === undefined ? undefined : requestsPerSecond / limit,
      p50: Math.round(of(runs, 'p50')),
      p99: Math.round(of(runs, 'p99')),
      p999: Math.round(of(runs, 'p999')),
      cpuMicrosPerRequest: of(runs, 'cpuMicrosPerRequest'),
      rssMiB: rss,
      runs: runs.map((run) => Math.round(run.requestsPerSecond)),
      othersShare: of(runs, 'othersShare'),
      loadShare: of(runs, 'loadShare'),
    }
  })
}

/** What makes figures worth less than they look. */
export function doubts(rows: readonly Row[]): string[] {
  return rows.flatMap(({ server, loadShare, othersShare }) => [
    ...(loadShare > LOAD_SHARE_MAX
      ? [
          `${server}: the load generator worked ${Math.round(loadShare * 100)}% of the time, and may be what was measured`,
        ]
      : []),
    ...(othersShare > OTHERS_MAX.writing
      ? [`${server}: others used ${othersShare.toFixed(2)} of a core meanwhile`]
      : []),
  ])
}
