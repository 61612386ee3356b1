/* Work that is repeated until it has succeeded. */

import { setTimeout as sleep } from 'node:timers/promises'
import { nextDelay } from '../../limits/backoff.ts'

/** While no plant can be created. */
export const LAST_RETRY_UNSERVED_MS = 5000

/** Repeats work after a growing delay, for as long as it is due. */
export async function repeatWhile(
  isDue: () => boolean,
  work: () => Promise<unknown>,
  [firstMs, lastMs]: readonly [firstMs: number, lastMs: number],
  signal: AbortSignal,
): Promise<void> {
  for (let delayMs = firstMs; isDue(); delayMs = nextDelay(delayMs, firstMs, lastMs)) {
    await sleep(delayMs, undefined, { ref: false, signal }).catch(() => {})
    if (signal.aborted || !isDue()) return
    await work()
  }
}
