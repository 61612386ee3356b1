/*
 * The metrics of the service. Each is read from its part during a scrape, and costs nothing before.
 * No label has a value that a client chose.
 */

import type { Checks } from './api/admin.ts'
import type { RouterOptions } from './api/router.ts'
import type { KeySource } from './auth/key-source.ts'
import type { HttpServer } from './http/server.ts'
import { VERSION } from './version.ts'

export function addServiceMetrics(
  { metrics, log, bodies, responses, verifier: { counts } }: RouterOptions,
  http: HttpServer,
  keys: KeySource,
  mountedActive: () => number,
  checks: () => Checks,
): void {
  const dropped = 'Log lines that were lost because their reader was too slow.'
  const active = 'Requests that are being served or wait for their turn on their connection.'
  const refused = 'Connections that were closed at once because there were too many.'
  const ofBodies = 'Request bodies, until they are stored and answered.'
  const ofResponses = 'Pages above 64 KiB, and what parts of lists have above that, until taken.'
  const cached = 'Requests whose token was in the cache.'
  const stale = '1 if the last version of the keys could not be read or used, else 0.'
  const age = 'Time since the last successful fetch of the key set.'
  metrics.gauge('plant_store_build_info', 'Always 1; the labels name what runs.', () => [
    [{ version: VERSION, node: process.version }, 1],
  ])
  metrics.gauge('plant_store_ready', '1 if this check of /readyz passes, else 0.', () =>
    Object.entries(checks()).map(([check, reason]) => [{ check }, reason === undefined ? 1 : 0]),
  )
  metrics.counter('plant_store_log_lines_dropped_total', dropped, log.dropped)
  metrics.gauge('http_server_active_requests', active, () => http.active + mountedActive())
  metrics.gauge('plant_store_connections', 'Open connections.', () => http.sockets.length)
  metrics.counter('plant_store_connections_refused_total', refused, () => http.refused)
  metrics.gauge('plant_store_held_body_bytes', ofBodies, () => bodies.held)
  metrics.gauge('plant_store_held_response_bytes', ofResponses, () => responses.held)
  metrics.counter('plant_store_tokens_verified_total', 'Tokens verified, by result.', () => [
    [{ result: 'accepted' }, counts.accepted],
    [{ result: 'refused' }, counts.refused],
  ])
  metrics.counter('plant_store_token_cache_hits_total', cached, () => counts.cached)
  // A secret has no age and is never stale; a set has an age if it was fetched and is usable.
  metrics.gauge('plant_store_keys_stale', stale, () => keys.isStale)
  metrics.gauge('plant_store_key_set_age_seconds', age, () => keys.ageSeconds)
}
