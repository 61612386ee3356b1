import { syncBuiltinESMExports } from 'node:module'
import type { TestContext } from 'node:test'
import timers, { setTimeout as sleep } from 'node:timers/promises'

/**
 * Ends a hang and measures nothing: many times what a loaded machine needs for anything. No limit
 * of the service is as long, so that tests can change its timers.
 */
export const PATIENCE_MS = 121_000
const FIRST_POLL_MS = 5
const LAST_POLL_MS = 50

/** Waits for a condition. What takes longer is asked for less often: each question costs time. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  // Not performance.now(), which tests stop.
  const deadline = Date.now() + PATIENCE_MS
  for (let pollMs = FIRST_POLL_MS; !(await holds()); await sleep(pollMs)) {
    if (Date.now() > deadline)
      throw new Error(`after ${PATIENCE_MS} ms it still does not hold: ${what}`)
    pollMs = Math.min(pollMs * 1.5, LAST_POLL_MS)
  }
}

/** What resolves once it is open, and what opens it. */
export function gate() {
  let open = (): void => {}
  const opened = new Promise<void>((resolve) => (open = resolve))
  return { opened, open }
}

/** Milliseconds of processor time, which other processes do not lengthen. */
export async function processorMs(work: () => unknown): Promise<number> {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

/** Stops the monotonic clock until `restore`, or the end of the test. Timers still run. */
export function stopClock(t: TestContext) {
  // A whole number: sums are exact.
  let nowMs = Math.ceil(performance.now())
  // No mock: it would keep a record of each of very many calls.
  const { now } = performance
  const restore = (): void => void (performance.now = now)
  performance.now = () => nowMs
  t.after(restore)
  return { pass: (ms: number) => (nowMs += ms), restore }
}

/**
 * Holds every pause of exactly this many milliseconds that the service makes. The returned function
 * releases them.
 */
export function holdPause(t: TestContext, ms: number): () => void {
  const original = timers.setTimeout
  const { opened, open } = gate()
  const mocked = t.mock.method(timers, 'setTimeout', (delayMs?: number, ...rest: []) =>
    delayMs === ms ? opened : original(delayMs, ...rest),
  )
  // Modules that imported the function by name see the change only after this call.
  syncBuiltinESMExports()
  t.after(() => {
    open()
    mocked.mock.restore()
    syncBuiltinESMExports()
  })
  return open
}

/**
 * Makes timers of exactly this many milliseconds as long as a test waits, such as one that closes
 * the connection of a client that has its answer.
 */
export function lengthenTimers(t: TestContext, ms: number): void {
  changeTimers(t, ms, PATIENCE_MS)
}

/** Makes timers of exactly this many milliseconds longer, or shorter. */
export function changeTimers(t: TestContext, ms: number, newMs: number): void {
  const original = globalThis.setTimeout
  type Values = [callback: () => void, delayMs?: number, ...values: []]
  t.mock.method(globalThis, 'setTimeout', (...[callback, delayMs, ...values]: Values) =>
    original(callback, delayMs === ms ? newMs : delayMs, ...values),
  )
}
