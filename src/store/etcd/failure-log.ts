/** Logs failures of etcd without filling the log. */
import type { Log } from '../../telemetry/log.ts'

const PERIOD_MS = 1000
/** In a period. There are few causes: an endpoint and what went wrong there. */
const CAUSES_MAX = 32

/**
 * Returns a function that logs why a call failed: each cause once a second. The next line counts
 * those that were left out.
 */
export function createFailureLog(log: Log): (message: string, reason: string) => void {
  const logged = new Set<string>()
  let periodEndsAt = 0
  let notLogged = 0
  return (message, reason) => {
    const now = performance.now()
    if (now >= periodEndsAt) {
      periodEndsAt = now + PERIOD_MS
      logged.clear()
    }
    const cause = `${message}: ${reason}`
    if (logged.has(cause) || logged.size === CAUSES_MAX) {
      notLogged += 1
      return
    }
    logged.add(cause)
    log.error(message, notLogged > 0 ? { reason, notLogged } : { reason })
    notLogged = 0
  }
}
