import type { KeySource } from './auth/keys.ts'
import type { Verifier } from './auth/verifier.ts'
import type { MemoryBudget } from './http/budget.ts'
import type { PageCache } from './http/page-cache.ts'
import type { Connections } from './http/server.ts'
import type { Log } from './ops/log.ts'
import type { Metrics } from './ops/metrics.ts'
import { version } from './version.ts'

export interface Parts {
  readonly connections: Connections
  readonly maxConnections: number
  readonly verifier: Verifier
  readonly keys: KeySource
  readonly pages: PageCache
  readonly bodies: MemoryBudget
  readonly answers: MemoryBudget
  readonly log: Log
  /** How often each error value was answered. */
  readonly errors: ReadonlyMap<number, number>
  /** The checks of readiness, each with what is wrong. */
  readonly checks: () => Readonly<Record<string, string | undefined>>
}

/**
 * The service's own metrics beside the storage's. All are read off its parts when somebody asks; no
 * label has a value that a caller chose.
 */
export function addServiceMetrics(
  metrics: Metrics,
  {
    connections,
    maxConnections,
    verifier,
    keys,
    pages,
    bodies,
    answers,
    log,
    errors,
    checks,
  }: Parts,
): void {
  const { counts } = verifier
  metrics.gauge('plant_store_build_info', 'Always 1; the labels say what runs.', () => [
    [{ version: version(), node: process.version }, 1],
  ])
  metrics.gauge('plant_store_ready', 'Whether a check of /readyz is green.', () =>
    Object.entries(checks()).map(([check, unavailableReason]) => [
      { check },
      unavailableReason === undefined ? 1 : 0,
    ]),
  )
  metrics.gauge(
    'http_server_active_requests',
    'Requests that are being answered, or wait behind another one of their connection.',
    () => connections.active,
  )
  metrics.counter('plant_store_errors_total', 'Failures answered, by error value.', () =>
    [...errors].map(([error, count]) => [{ error: String(error) }, count]),
  )
  metrics.gauge('plant_store_connections', 'Open connections.', () => connections.size)
  metrics.gauge(
    'plant_store_connections_limit',
    'Most connections at a time: PLANTS_MAX_CONNECTIONS, or fewer where the limit of open files is lower.',
    () => maxConnections,
  )
  metrics.counter(
    'plant_store_connections_refused_total',
    'Connections that were closed at once because there were too many.',
    () => connections.refused,
  )
  metrics.gauge(
    'plant_store_held_body_bytes',
    'Room taken by request bodies that are read or wait to be stored.',
    () => bodies.heldBytes,
  )
  metrics.gauge(
    'plant_store_held_answer_bytes',
    'Answers that clients have not taken yet.',
    () => answers.heldBytes,
  )
  metrics.gauge(
    'plant_store_remembered_pages_bytes',
    'Answers to lists that are remembered.',
    () => pages.bytes,
  )
  metrics.counter(
    'plant_store_tokens_verified_total',
    'Tokens whose signature and claims were checked.',
    () => [
      [{ result: 'accepted' }, counts.accepted],
      [{ result: 'refused' }, counts.refused],
    ],
  )
  metrics.counter(
    'plant_store_tokens_remembered_total',
    'Requests let in because their token had been verified before.',
    () => counts.cached,
  )
  metrics.gauge(
    'plant_store_token_cache_entries',
    'Verified tokens that are remembered.',
    () => verifier.cacheSize,
  )
  metrics.counter(
    'plant_store_key_set_fetches_total',
    'Attempts to fetch the key set.',
    () =>
      keys.fetches && [
        [{ result: 'success' }, keys.fetches.succeeded],
        [{ result: 'failure' }, keys.fetches.failed],
      ],
  )
  metrics.gauge(
    'plant_store_key_set_age_seconds',
    'Since the key set in use was last fetched; missing while there is none.',
    () => {
      const ageMs = keys.fetches?.ageMs
      return ageMs === undefined ? undefined : ageMs / 1000
    },
  )
  metrics.counter(
    'plant_store_log_lines_dropped_total',
    'Log lines lost because nobody read them in time.',
    () => log.dropped,
  )
}
