// The load generator's process.
import { cpuUsage } from 'node:process'
import { reasonOf } from '../../dist/errors.js'
import { percentiles, type Percentiles } from '../figures.ts'
import { Connection } from './connection.ts'
import { type Asked, requests } from './requests.ts'

export interface LoadSpec extends Asked {
  readonly port: number
  readonly connections: number
  /** A run ends after this long. */
  readonly seconds: number
}

/** Latencies are from the sending of a request to the last byte of its answer. */
export interface LoadResult extends Percentiles {
  readonly requests: number
  readonly seconds: number
  /** The load generator's own time on its core: near 1 it measures itself. */
  readonly loadShare: number
}

export type FromLoad = LoadResult | { readonly error: string }

/** Bounds the memory of the load generator: no run comes near it. */
const REQUESTS_MAX = 4_000_000
const ANSWER_MS_MAX = 10_000

async function run(spec: LoadSpec): Promise<LoadResult> {
  const next = requests(spec)
  const open: Connection[] = []
  let fail: (error: Error) => void = () => {}
  const failed = new Promise<never>((_, reject) => (fail = reject))
  // It may fail when the race below is over.
  failed.catch(() => {})
  const watchdog = setTimeout(
    () => fail(new Error('an answer never came')),
    spec.seconds * 1000 + ANSWER_MS_MAX,
  )
  try {
    for (let i = 0; i < spec.connections; i++) {
      // Node accepts one connection a tick: connections that open and send at once are served
      // unevenly, which would fill the tail. A first answer shows that each was accepted.
      const opening = new Promise<void>((resolve) => {
        const connection = new Connection(spec.port, () => connection.send(next(), resolve), fail)
        open.push(connection)
      })
      await Promise.race([opening, failed])
    }
    // What the run before left: collected during this one, it would delay answers.
    globalThis.gc?.()
    return await Promise.race([loop(spec.seconds, open, next), failed])
  } finally {
    clearTimeout(watchdog)
    for (const connection of open) connection.close()
  }
}

/** Each connection sends its next request when the last is answered. */
function loop(
  seconds: number,
  open: readonly Connection[],
  next: () => string | Buffer,
): Promise<LoadResult> {
  const cpu = cpuUsage()
  const startedAtMs = performance.now()
  const micros: number[] = []
  const result = (): LoadResult => {
    const wallMs = performance.now() - startedAtMs
    const { user, system } = cpuUsage(cpu)
    const loadShare = (user + system) / 1000 / wallMs
    return { requests: micros.length, seconds: wallMs / 1000, ...percentiles(micros), loadShare }
  }
  return new Promise((resolve) => {
    let sent = 0
    let busy = open.length
    const go = (connection: Connection): void => {
      const sentAtMs = performance.now()
      if (sentAtMs < startedAtMs + seconds * 1000 && sent < REQUESTS_MAX) {
        sent += 1
        return connection.send(next(), () => {
          micros.push((performance.now() - sentAtMs) * 1000)
          go(connection)
        })
      }
      busy -= 1
      if (busy === 0) resolve(result())
    }
    for (const connection of open) go(connection)
  })
}

// Only the benchmark sends, one run after another.
process.on('message', (spec: LoadSpec) => {
  const tell = (message: FromLoad): unknown => process.send?.(message)
  run(spec).then(tell, (error: unknown) => tell({ error: reasonOf(error) }))
})
process.on('disconnect', () => process.exit(1))
