import { syncBuiltinESMExports } from 'node:module'
import type { TestContext } from 'node:test'
import timers, { setTimeout as sleep } from 'node:timers/promises'

/**
 * How long a test waits for what must come: many times what a loaded machine needs, so that it ends
 * a hang and measures nothing. A test that passes never waits so long.
 */
export const PATIENCE_MS = 120_000
const POLL_MS = 5

/** Waits for a condition. */
export async function until(what: string, holds: () => boolean | Promise<boolean>): Promise<void> {
  // Not performance.now(), which tests stop.
  for (const deadline = Date.now() + PATIENCE_MS; !(await holds()); await sleep(POLL_MS)) {
    if (Date.now() > deadline)
      throw new Error(`after ${PATIENCE_MS} ms it still does not hold: ${what}`)
  }
}

/**
 * How much of the processor something takes, in milliseconds: unlike time, that does not grow where
 * others are at work.
 */
export async function processorMs(work: () => unknown): Promise<number> {
  const before = process.cpuUsage()
  await work()
  const { user, system } = process.cpuUsage(before)
  return (user + system) / 1000
}

export interface StoppedClock {
  pass(ms: number): void
  /** The clock is the real one again. */
  restore(): void
}

/**
 * The monotonic clock stands still until the test ends, and goes on only as it is told to. Timers
 * run all the same.
 */
export function stopClock(t: TestContext): StoppedClock {
  // A whole number, so that sums are exact.
  let nowMs = Math.ceil(performance.now())
  const mocked = t.mock.method(performance, 'now', () => nowMs)
  return { pass: (ms) => (nowMs += ms), restore: () => mocked.mock.restore() }
}

/**
 * A pause that the service makes, of exactly so many milliseconds, lasts until the function that
 * this gives is called.
 */
export function holdPause(t: TestContext, ms: number): () => void {
  const original = timers.setTimeout
  let release = (): void => {}
  const held = new Promise<void>((resolve) => (release = resolve))
  const mocked = t.mock.method(timers, 'setTimeout', (delayMs?: number, ...rest: []) =>
    delayMs === ms ? held : original(delayMs, ...rest),
  )
  // What modules have imported by name is what is here when this is called.
  syncBuiltinESMExports()
  t.after(() => {
    release()
    mocked.mock.restore()
    syncBuiltinESMExports()
  })
  return release
}

/**
 * Timers of exactly so many milliseconds, such as those after which a client that has been answered
 * is let go of, wait for as long as a test does.
 */
export function stretchTimers(t: TestContext, ms: number): void {
  const original = globalThis.setTimeout
  t.mock.method(globalThis, 'setTimeout', (callback: () => void, delayMs?: number) =>
    original(callback, delayMs === ms ? PATIENCE_MS : delayMs),
  )
}
