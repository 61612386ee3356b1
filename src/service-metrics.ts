import type { KeySource } from './auth/keys.ts'
import type { Verifier } from './auth/verifier.ts'
import type { Checks } from './http/admin.ts'
import type { MemoryBudget } from './http/budget.ts'
import type { PageCache } from './http/page-cache.ts'
import type { Connections } from './http/server.ts'
import type { Log } from './ops/log.ts'
import type { Metrics } from './ops/metrics.ts'
import { version } from './version.ts'

// All of these are read from the parts of the service during a scrape, and cost nothing before.
// No label has a value that a client chose.

export function addStateMetrics(metrics: Metrics, checks: () => Checks, log: Log): void {
  metrics.gauge('plant_store_build_info', 'Always 1; the labels name what runs.', () => [
    [{ version: version(), node: process.version }, 1],
  ])
  metrics.gauge('plant_store_ready', '1 if this check of /readyz passes, else 0.', () =>
    Object.entries(checks()).map(([check, reason]) => [{ check }, reason === undefined ? 1 : 0]),
  )
  metrics.counter(
    'plant_store_log_lines_dropped_total',
    'Log lines that were lost because their reader was too slow.',
    () => log.dropped,
  )
}

export function addConnectionMetrics(
  metrics: Metrics,
  connections: Connections,
  maxConnections: number,
): void {
  metrics.gauge(
    'http_server_active_requests',
    'Requests that are being served or wait for their turn on their connection.',
    () => connections.active,
  )
  metrics.gauge('plant_store_connections', 'Open connections.', () => connections.size)
  metrics.gauge(
    'plant_store_connections_limit',
    'Most open connections: PLANTS_MAX_CONNECTIONS, or fewer if the limit of open files is lower.',
    () => maxConnections,
  )
  metrics.counter(
    'plant_store_connections_refused_total',
    'Connections that were closed at once because there were too many.',
    () => connections.refused,
  )
}

export function addMemoryMetrics(
  metrics: Metrics,
  bodies: MemoryBudget,
  answers: MemoryBudget,
  pages: PageCache,
): void {
  metrics.gauge('plant_store_held_body_bytes', 'Request bodies held.', () => bodies.heldBytes)
  metrics.gauge('plant_store_held_answer_bytes', 'Responses held.', () => answers.heldBytes)
  metrics.gauge('plant_store_remembered_pages_bytes', 'Lists in the cache.', () => pages.bytes)
}

export function addTokenMetrics(metrics: Metrics, verifier: Verifier, keys: KeySource): void {
  const { counts } = verifier
  metrics.counter('plant_store_tokens_verified_total', 'Tokens verified, by result.', () => [
    [{ result: 'accepted' }, counts.accepted],
    [{ result: 'refused' }, counts.refused],
  ])
  metrics.counter(
    'plant_store_tokens_remembered_total',
    'Requests whose token was in the cache.',
    () => counts.cached,
  )
  metrics.gauge(
    'plant_store_token_cache_entries',
    'Verified tokens in the cache.',
    () => verifier.cacheSize,
  )
  metrics.counter('plant_store_key_set_fetches_total', 'Attempts to fetch the key set.', () => {
    const { fetches } = keys
    return (
      fetches && [
        [{ result: 'success' }, fetches.succeeded],
        [{ result: 'failure' }, fetches.failed],
      ]
    )
  })
  metrics.gauge(
    'plant_store_key_set_age_seconds',
    'Since the last successful fetch of the key set; missing without a usable set.',
    () => {
      const ageMs = keys.fetches?.ageMs
      return ageMs === undefined ? undefined : ageMs / 1000
    },
  )
}
