/* Lets pages of other origins call the service (Fetch Standard, "CORS protocol"). */

import type { Exchange } from '../http/exchange.ts'
import { valuesOf } from '../http/headers.ts'
import type { HttpResponse } from '../http/response.ts'

/** What a page may read besides the few headers that every page may. */
const EXPOSED = ['Access-Control-Expose-Headers', 'Link, Request-Id, Retry-After, WWW-Authenticate']
/** `*` is for what tools for traces and errors add. It covers all but Authorization. */
const ALLOWED_HEADERS = [
  'Access-Control-Allow-Headers',
  'Authorization, Content-Type, Request-Id, traceparent, *',
]
/** In seconds: a browser asks again after this time. */
const MAX_AGE = ['Access-Control-Max-Age', '600']

/**
 * Adds the headers for an origin that may read the response. A copy: it may be cached. `origins`
 * are as browsers send them; `*` alone means all, also `null`. Tokens are sent by the page itself:
 * credentials of the browser are never allowed.
 */
export function allowOrigin(
  origins: readonly string[] | undefined,
  exchange: Exchange | undefined,
  response: HttpResponse,
): HttpResponse {
  // Of what Node's parser refused, the origin is unknown. If only one may read, it is named: a
  // browser compares.
  const [origin, second] = (exchange ? exchange.headers('origin') : origins) ?? []
  // Never the client's own text.
  const allowed = origins?.find((each) => each === '*' || each === origin)
  if (origin === undefined || second !== undefined || allowed === undefined) return response
  const headers = ['Access-Control-Allow-Origin', allowed, 'Vary', 'Origin', ...EXPOSED]
  // Only OPTIONS has 204, with Allow.
  const methods = response.status === 204 ? valuesOf(response.headers, 'allow') : []
  for (const each of methods)
    headers.push('Access-Control-Allow-Methods', each, ...ALLOWED_HEADERS, ...MAX_AGE)
  return { ...response, headers: [...response.headers, ...headers] }
}
