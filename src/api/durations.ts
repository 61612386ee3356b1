/* How long requests take. */

import { Histogram, type Metrics } from '../telemetry/metrics.ts'

/** A method that is not listed counts as this one, so that no client can add series. */
const OTHER = '_OTHER'
/** RFC 9110 §9 and RFC 5789: the methods that OpenTelemetry knows. */
const METHODS = 'GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH'.split(' ')
/** From 5 ms on, those that OpenTelemetry's conventions recommend. Most requests here take less. */
const BOUNDS_SECONDS = [
  0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5,
  7.5, 10,
]

/**
 * Durations of requests by method, route and status, under OpenTelemetry's names. Returns what
 * records one. `route` is undefined if no path matched: to Prometheus an empty label is a missing
 * one.
 */
export function requestDurations(metrics: Metrics) {
  const help = 'Duration of requests, from their headers to the last byte of the response.'
  const allSeries = new Map<string, Histogram>()
  metrics.add('histogram', 'http_server_request_duration_seconds', help, () =>
    [...allSeries.values()].flatMap((series) => series.samples()),
  )
  return (method = OTHER, route = '', status: number, seconds: number): void => {
    const known = METHODS.includes(method) ? method : OTHER
    const key = `${known} ${route} ${status}`
    let series = allSeries.get(key)
    if (!series) {
      const labels = { http_request_method: known, http_route: route }
      series = new Histogram(BOUNDS_SECONDS, { ...labels, http_response_status_code: status })
      allSeries.set(key, series)
    }
    series.observe(seconds)
  }
}
