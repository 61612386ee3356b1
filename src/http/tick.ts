/* One wait for all responses of a tick of the event loop. */

/** When this many responses wait, they are sent at once. This bounds their memory. */
const WAITING_MAX = 32

const waiting: (() => void)[] = []
/** Responses of this tick so far. */
let count = 0
/** Responses of the last tick that had any. */
let lastCount = 0

/**
 * Calls `send` before the tick ends. If ticks bring one response each, calls it at once. The
 * responses of one tick of the event loop, which the process has one of, are sent together: one
 * that is sent between two reads wakes a sleeping client, and pushes the code that reads requests
 * out of the processor's caches. At full load cached lists would have half the rate
 * (`make bench WORKLOADS=get20`). With one request a tick nothing waits.
 */
export function atTickEnd(send: () => void): void {
  if (++count === 1) {
    setImmediate(endTick)
    if (lastCount <= 1) return send()
  }
  if (waiting.push(send) >= WAITING_MAX) sendAll()
}

function endTick(): void {
  lastCount = count
  count = 0
  sendAll()
}

function sendAll(): void {
  for (const send of waiting.splice(0)) send()
}
