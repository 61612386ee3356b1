// The load generator's process.
import { reasonOf } from '../../dist/errors.js'
import { Connection } from './connection.ts'
import { openLoop } from './open-loop.ts'
import { type LoadResult, Recorder } from './recorder.ts'
import { type Asked, requests } from './requests.ts'

export interface LoadSpec extends Asked {
  readonly id: number
  readonly port: number
  readonly connections: number
  /** A run ends after this long. A `stop` ends a closed loop before. */
  readonly seconds: number
  /** Each connection waits this long between an answer and the next request. */
  readonly pauseMs: number
  /** Whether the result has every single sample. */
  readonly samples: boolean
  /**
   * An open loop: requests arrive this often, whatever is answered. 0 is a closed loop: each
   * connection sends its next request when the last is answered.
   */
  readonly perSecond: number
}

export type ToLoad = { readonly run: LoadSpec } | { readonly stop: number }
export type FromLoad =
  | { readonly id: number; readonly result: LoadResult }
  | { readonly id: number; readonly error: string }

/** Bounds the memory of the load generator: no run comes near it. */
const REQUESTS_MAX = 4_000_000
const ANSWER_MS_MAX = 10_000
const stops = new Map<number, () => void>()

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
        const connection = new Connection(
          spec.port,
          () => (spec.kind === 'list' ? resolve() : connection.send(next(), () => resolve())),
          fail,
        )
        open.push(connection)
      })
      await Promise.race([opening, failed])
    }
    // What the run before left: collected during this one, it would delay answers.
    globalThis.gc?.()
    const loop =
      spec.perSecond > 0 ? openLoop(spec, open, next) : closedLoop(spec, open, next, fail)
    const recorder = await Promise.race([loop, failed])
    return recorder.result()
  } finally {
    clearTimeout(watchdog)
    stops.delete(spec.id)
    for (const connection of open) connection.close()
  }
}

/** Each connection sends its next request when the last is answered. */
function closedLoop(
  spec: LoadSpec,
  open: readonly Connection[],
  next: () => string | Buffer,
  fail: (error: Error) => void,
): Promise<Recorder> {
  return new Promise((resolve) => {
    const recorder = new Recorder(spec)
    let sent = 0
    let busy = open.length
    let deadline = performance.now() + spec.seconds * 1000
    stops.set(spec.id, () => (deadline = 0))

    const go = (connection: Connection): void => {
      const sentAt = performance.now()
      if (sentAt < deadline && sent < REQUESTS_MAX) {
        sent += 1
        const request = next()
        connection.send(request, (objects) => {
          recorder.add(request, sentAt)
          if (spec.kind === 'list' && objects !== spec.plants)
            return fail(new Error(`a list of ${objects} plants instead of ${spec.plants}`))
          if (spec.pauseMs > 0) setTimeout(go, spec.pauseMs, connection)
          else go(connection)
        })
        return
      }
      busy -= 1
      if (busy === 0) resolve(recorder)
    }
    for (const connection of open) go(connection)
  })
}

function tell(message: FromLoad): void {
  process.send?.(message)
}

// Only the benchmark sends, and nothing else.
process.on('message', (message: ToLoad) => {
  if ('stop' in message) {
    stops.get(message.stop)?.()
    return
  }
  const { id } = message.run
  run(message.run).then(
    (result) => tell({ id, result }),
    (error: unknown) => tell({ id, error: reasonOf(error) }),
  )
})
process.on('disconnect', () => process.exit(1))
