// The load generator's process. An error ends it.
import { percentile } from '../figures.ts'
import { Connection } from './connection.ts'
import { type Ask, requests } from './requests.ts'

export interface LoadSpec {
  readonly port: number
  readonly ask: Ask
  /** How many requests earlier runs made of the same server. */
  readonly made: number
  /** A run ends after this long. */
  readonly seconds: number
}

/** Microseconds from the sending of a request to the last byte of its answer. */
export interface LoadResult {
  readonly requests: number
  readonly seconds: number
  readonly p50: number
  readonly p99: number
}

const ANSWER_MS_MAX = 10_000

async function run({ port, ask, made, seconds }: LoadSpec): Promise<LoadResult> {
  const next = requests(ask, made)
  const open: Connection[] = []
  const micros: number[] = []
  const watchdog = setTimeout(
    () => {
      throw new Error('an answer never came')
    },
    seconds * 1000 + ANSWER_MS_MAX,
  )
  for (let i = 0; i < ask.connections; i++) {
    // Node accepts one connection a tick: connections that open and send at once are served
    // unevenly, which would fill the tail. A first answer shows that each was accepted.
    const connection = new Connection(port)
    await new Promise<void>((resolve) => connection.send(next(), resolve))
    open.push(connection)
  }
  // What the run before left: collected during this one, it would delay answers.
  globalThis.gc?.()
  const startedAtMs = performance.now()
  /** Each connection sends its next request when the last is answered. */
  const use = (connection: Connection, done: () => void): void => {
    const sentAtMs = performance.now()
    if (sentAtMs > startedAtMs + seconds * 1000) return done()
    connection.send(next(), () => {
      micros.push((performance.now() - sentAtMs) * 1000)
      use(connection, done)
    })
  }
  await Promise.all(open.map((each) => new Promise<void>((done) => use(each, done))))
  const tookSeconds = (performance.now() - startedAtMs) / 1000
  clearTimeout(watchdog)
  for (const connection of open) connection.close()
  const [p50, p99] = [percentile(micros, 0.5), percentile(micros, 0.99)]
  return { requests: micros.length, seconds: tookSeconds, p50, p99 }
}

// Only the benchmark sends, one run after another.
process.on('message', (spec: LoadSpec) => void run(spec).then((result) => process.send?.(result)))
process.on('disconnect', () => process.exit())
