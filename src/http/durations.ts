import type { Histogram, Labels, Metrics } from '../ops/metrics.ts'

/**
 * RFC 9110 §9 and RFC 5789: the methods that OpenTelemetry knows. All others are one, so that no
 * caller can make up series.
 */
const METHODS: ReadonlyMap<string, number> = new Map(
  ['GET', 'HEAD', 'POST', 'PUT', 'DELETE', 'CONNECT', 'OPTIONS', 'TRACE', 'PATCH'].map(
    (method, at) => [method, at + 1],
  ),
)
const OTHER = '_OTHER'
/** As OpenTelemetry's conventions for HTTP advise. */
const BOUNDS_SECONDS = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10]
const STATUSES = 1000

/**
 * How long requests take, by method, route and status, under OpenTelemetry's names. A series is
 * found by one number: this is done for every request, and must cost next to nothing.
 */
export class RequestDurations {
  readonly #routes: readonly string[]
  readonly #make: (labels: Labels) => Histogram
  readonly #series = new Map<number, Histogram>()

  /** `routes` are all that there are. */
  constructor(metrics: Metrics, routes: readonly string[]) {
    this.#routes = routes
    this.#make = metrics.histograms(
      'http_server_request_duration_seconds',
      'Duration of requests, from their head to the last byte of the answer that was handed on.',
      BOUNDS_SECONDS,
    )
  }

  /** Method and route are undefined where they are not known. */
  record(
    method: string | undefined,
    route: string | undefined,
    status: number,
    seconds: number,
  ): void {
    const methodAt = method === undefined ? 0 : (METHODS.get(method) ?? 0)
    const routeAt = route === undefined ? 0 : this.#routes.indexOf(route) + 1
    const key = (methodAt * (this.#routes.length + 1) + routeAt) * STATUSES + status
    const series =
      this.#series.get(key) ??
      this.#add(
        key,
        methodAt === 0 ? OTHER : (method ?? OTHER),
        routeAt === 0 ? '' : (route ?? ''),
        status,
      )
    series.observe(seconds)
  }

  /** An empty label is to Prometheus what a missing one is. */
  #add(key: number, method: string, route: string, status: number): Histogram {
    const series = this.#make({
      http_request_method: method,
      http_route: route,
      http_response_status_code: String(status),
    })
    this.#series.set(key, series)
    return series
  }
}
