import type { Histogram, Labels, Metrics } from '../ops/metrics.ts'

/** A method that is not listed counts as this one, so that no client can add series. */
const OTHER = '_OTHER'
/** RFC 9110 §9 and RFC 5789: the methods that OpenTelemetry knows. */
const METHODS = `${OTHER} GET HEAD POST PUT DELETE CONNECT OPTIONS TRACE PATCH`.split(' ')
/** From 5 ms on, those that OpenTelemetry's conventions recommend. Most requests here take less. */
const BOUNDS_SECONDS = [
  0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5,
  7.5, 10,
]
const STATUSES = 1000

/** Durations of requests by method, route and status, under OpenTelemetry's names. */
export class RequestDurations {
  /** The first one is empty, for no route: to Prometheus an empty label is a missing one. */
  readonly #routes: readonly string[]
  readonly #create: (labels: Labels) => Histogram
  /** The key is one number: a text costs 0.1 µs more, and every request looks it up. */
  readonly #series = new Map<number, Histogram>()

  constructor(metrics: Metrics, routes: readonly string[]) {
    this.#routes = ['', ...routes]
    this.#create = metrics.histograms(
      'http_server_request_duration_seconds',
      'Duration of requests, from their headers to the last byte of the response.',
      BOUNDS_SECONDS,
    )
  }

  /** Method and route are undefined if they are not known. */
  record(method = OTHER, route = '', status: number, seconds: number): void {
    const methodAt = Math.max(0, METHODS.indexOf(method))
    const routeAt = Math.max(0, this.#routes.indexOf(route))
    const key = (methodAt * this.#routes.length + routeAt) * STATUSES + status
    let series = this.#series.get(key)
    if (!series) {
      series = this.#create({
        http_request_method: METHODS[methodAt] ?? OTHER,
        http_route: this.#routes[routeAt] ?? '',
        http_response_status_code: String(status),
      })
      this.#series.set(key, series)
    }
    series.observe(seconds)
  }
}
