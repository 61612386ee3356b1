import type { Connection } from './connection.ts'
import { Recorder } from './recorder.ts'

/** How often requests arrive, and for how long. */
export interface Arrivals {
  readonly perSecond: number
  readonly seconds: number
  /** Whether the result has every single sample. */
  readonly samples: boolean
}

/** The loop looks at the clock all the time. After this long without a look it was held up. */
const PAUSE_MS = 5

/**
 * Requests arrive at a fixed rate, whatever is answered. One that finds no free connection waits
 * for one. Latency counts from the arrival, so a stall counts for every request that came in it.
 */
export function openLoop(
  spec: Arrivals,
  open: readonly Connection[],
  next: () => string | Buffer,
): Promise<Recorder> {
  return new Promise((resolve) => {
    const { perSecond, seconds } = spec
    const recorder = new Recorder(spec)
    const free = [...open]
    const startedAt = performance.now()
    const all = Math.floor(perSecond * seconds)
    let [sent, answered] = [0, 0]

    const send = (connection: Connection): void => {
      const arrivedAt = startedAt + (sent * 1000) / perSecond
      const request = next()
      sent += 1
      connection.send(request, () => {
        recorder.add(request, arrivedAt)
        free.push(connection)
        answered += 1
      })
    }
    // Timers count whole milliseconds, so this looks at the clock in every tick.
    let lookedAt = startedAt
    const tick = (): void => {
      if (answered === all) return resolve(recorder)
      const now = performance.now()
      if (now - lookedAt > PAUSE_MS) recorder.heldUp(now - lookedAt)
      lookedAt = now
      const arrived = Math.floor(((now - startedAt) * perSecond) / 1000) + 1
      while (sent < Math.min(arrived, all)) {
        // The one that was idle longest: a server closes connections that idle too long.
        const connection = free.shift()
        if (!connection) break
        send(connection)
      }
      setImmediate(tick)
    }
    tick()
  })
}
