/* GET /plants. */

import { type Condition, HttpError } from '../errors.ts'
import { bodyOf, type HttpResponse, lengthOf, SHORT_MAX_BYTES } from '../http/response.ts'
import type { PlantList, PlantRange } from '../plants/store.ts'
import { type Call, inTurn } from './call.ts'
import { readCursor, writeCursor } from './cursor.ts'
import { PlantStream } from './plant-stream.ts'

const LIMIT_MAX = 2 ** 31 - 1

/** GET /plants, from the parameters on. A cached page is returned at once. */
export function listPlants(call: Call): HttpResponse | Promise<HttpResponse> {
  const { owner, query } = call
  const { store, pages } = call.options
  const cached = pages.get(owner, query)
  if (cached) return reservePage(call, cached)
  const respond = (list: PlantList, limit: number | undefined) => {
    const responseOf = (first = '[]'): HttpResponse =>
      reservePage(call, {
        status: 200,
        headers: list.cutAt === undefined ? [] : ['Link', nextPage(owner, limit, list.cutAt)],
        // A list of one chunk has a Content-Length; a longer one is made while its client reads it.
        body: list.ended ? bodyOf(first) : new PlantStream(list, first, call),
      })
    const first = list.next()
    return first instanceof Promise ? first.then(responseOf) : responseOf(first)
  }
  return inTurn(call, () => {
    const range = readRange(owner, query)
    const list = store().list(owner, range)
    if (list instanceof Promise)
      return list.then((it) => orClose(it, () => respond(it, range.limit)))
    const response = orClose(list, () => respond(list, range.limit))
    // A response that was awaited is not cached: a create may have come in between.
    if (!(response instanceof Promise)) pages.add(owner, query, response, list.cutAt)
    return response
  })
}

/**
 * Reserves a page until it is sent. Each connection may hold a short one.
 * @throws HttpError `overloaded` without room.
 */
function reservePage({ exchange, owner, options }: Call, page: HttpResponse): HttpResponse {
  const bytes = lengthOf(page.body) ?? 0
  if (bytes <= SHORT_MAX_BYTES || exchange.method === 'HEAD') return page
  const hold = options.responses.reserve(owner, bytes)
  exchange.whenDone(() => hold.set(0))
  return page
}

/** Closes a list that gets no response. */
function orClose<T>(list: PlantList, respond: () => T | Promise<T>): T | Promise<T> {
  const fail = (error: unknown): never => {
    list.close()
    throw error
  }
  try {
    const response = respond()
    return response instanceof Promise ? response.catch(fail) : response
  } catch (error) {
    return fail(error)
  }
}

/** @throws HttpError `limitInvalid` or `afterInvalid`. */
function readRange(owner: string, query: string): PlantRange {
  if (query === '') return { after: undefined, limit: undefined }
  // URLSearchParams drops one leading "?". A second one belongs to a parameter's name.
  const parameters = new URLSearchParams(`?${query}`)
  const limit = readOnce(parameters.getAll('limit'), readLimit, 'limitInvalid')
  const cursors = parameters.getAll('after')
  const after = readOnce(cursors, (cursor) => readCursor(owner, cursor), 'afterInvalid')
  return { after, limit }
}

/**
 * The value of a parameter that may appear once; undefined if it is absent.
 * @throws HttpError if it is repeated, or if `read` returns undefined.
 */
function readOnce<T>(
  texts: readonly string[],
  read: (text: string) => T | undefined,
  invalid: Condition,
): T | undefined {
  const [text, second] = texts
  if (text === undefined) return undefined
  const value = second === undefined ? read(text) : undefined
  if (value === undefined) throw new HttpError(invalid)
  return value
}

function readLimit(digits: string): number | undefined {
  const limit = Number(digits)
  return /^[0-9]{1,10}$/.test(digits) && limit <= LIMIT_MAX ? limit : undefined
}

/** RFC 8288. A query alone: the service does not know which path prefix a proxy adds. */
function nextPage(owner: string, limit: number | undefined, cutAt: bigint): string {
  return `<?limit=${limit}&after=${writeCursor(owner, cutAt)}>; rel="next"`
}
