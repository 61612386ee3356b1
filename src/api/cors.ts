/* Lets pages of other origins call the service (Fetch Standard, "CORS protocol"). */

import type { Exchange } from '../http/exchange.ts'
import type { HttpResponse } from '../http/response.ts'

/** What a page may read besides the few headers that every page may. */
const EXPOSED = ['Access-Control-Expose-Headers', 'Link, Request-Id, Retry-After, WWW-Authenticate']
const ALLOWED_HEADERS = 'Authorization, Content-Type, Request-Id, traceparent'
/** In seconds: a browser asks again after this time. */
const MAX_AGE = ['Access-Control-Max-Age', '600']

/** Tokens are sent by the page itself: credentials of the browser are never allowed. */
export class Cors {
  readonly #origins: readonly string[]

  /** As browsers send them; `*` alone stands for all, also for `null`. */
  constructor(origins: readonly string[]) {
    this.#origins = origins
  }

  /** The response for the page of an origin that may read it. A cached one stays as it is. */
  allow(exchange: Exchange, response: HttpResponse): HttpResponse {
    const origin = this.#allowedOrigin(exchange)
    if (origin === undefined) return response
    const allow = ['Access-Control-Allow-Origin', origin, 'Vary', 'Origin', ...EXPOSED]
    return { ...response, headers: [...response.headers, ...allow] }
  }

  /** More headers of the response to OPTIONS. */
  preflight(exchange: Exchange, methods: string): readonly string[] {
    if (this.#allowedOrigin(exchange) === undefined) return []
    const headers = ['Access-Control-Allow-Headers', ALLOWED_HEADERS, ...MAX_AGE]
    return ['Access-Control-Allow-Methods', methods, ...headers]
  }

  /** Never the client's own text. */
  #allowedOrigin(exchange: Exchange): string | undefined {
    const [origin, second] = exchange.headers('origin')
    if (origin === undefined || second !== undefined) return undefined
    return this.#origins.find((each) => each === '*' || each === origin)
  }
}
