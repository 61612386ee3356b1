import { setImmediate as yieldTick } from 'node:timers/promises'

/** Long work yields after this long: a probe takes several ticks, and has a second for all. */
const YIELD_MS = 50

/** To be called after each piece of work. Returns a promise to wait for if it is time to yield. */
export function pausing(): () => Promise<void> | undefined {
  let yieldedAtMs = performance.now()
  return () => {
    if (performance.now() - yieldedAtMs < YIELD_MS) return undefined
    return yieldTick().then(() => void (yieldedAtMs = performance.now()))
  }
}
