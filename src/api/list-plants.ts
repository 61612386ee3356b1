/* GET /plants. */

import { ClientGone, HttpError } from '../errors.ts'
import { bodyOf, type BodyStream, type HttpResponse, SHORT_MAX_BYTES } from '../http/response.ts'
import { type Hold, overloaded } from '../limits/budget.ts'
import type { PlantChunk, PlantList, PlantRange } from '../plants/store.ts'
import { type Call, holding, inTurn, reserved } from './call.ts'
import { readCursor, writeCursor } from './cursor.ts'

const LIMIT_MAX = 2 ** 31 - 1
/** A page has at most this much, or one plant. */
const PAGE_MAX_BYTES = 8 * 1024 * 1024

/** GET /plants, from the parameters on. A cached page is returned at once. */
export function listPlants(call: Call): HttpResponse | Promise<HttpResponse> {
  const { owner, query } = call
  const { store, pageCache } = call.options
  const cached = pageCache.get(owner, query)
  if (cached) return reserved(call, cached)
  return inTurn(call, () => {
    const range = readQuery(owner, query)
    const list = store().list(owner, range)
    const { limit } = range
    const next = list.next()
    if (next instanceof Promise) return next.then(({ value }) => respond(call, list, limit, value))
    const response = respond(call, list, limit, next.value)
    // A response that was awaited is not cached: a create may have come in between.
    if (!store().isShared && !(response instanceof Promise))
      pageCache.add(owner, query, response, cutOf(next.value))
    return response
  })
}

/** At once, unless it is a page of several chunks. */
function respond(call: Call, list: PlantList, limit?: number, first?: PlantChunk) {
  if (!first) throw new Error('a list has no chunk')
  const { json, count } = first
  const cutAt = cutOf(first)
  // One chunk has a Content-Length, also without a limit.
  if (cutAt === undefined || count === limit)
    return reserved(call, pageResponse(call, bodyOf(json), limit, cutAt))
  if (limit !== undefined) return makePage(call, list, limit, first)
  const text = partOf(json, false)
  const hold = call.options.responses.reserve(call.owner, excessOf(text))
  call.exchange.whenDone(() => hold.set(0))
  return { status: 200, headers: [], body: streamList(call, list, hold, text) }
}

/**
 * A list of several chunks as one JSON array. One chunk at a time is in memory: each is made when
 * the one before it has been taken, and once it is the owner's turn. What is above the length that
 * each connection may hold is reserved.
 */
function streamList(call: Call, list: PlantList, hold: Hold, first: Buffer): BodyStream {
  let [text, isOver]: [Buffer | undefined, boolean] = [first, false]
  return async () => {
    if (isOver) return undefined
    const part = text ?? (await nextPart(call, list, hold))
    // It is free while the next one waits for its turn.
    text = undefined
    isOver = part === undefined
    return part ?? Buffer.from(']')
  }
}

/** @throws HttpError `overloaded` if there is no room: the list cannot go on. */
async function nextPart({ exchange, owner, options }: Call, list: PlantList, hold: Hold) {
  hold.set(0)
  const next = await options.queue.run(owner, () => (exchange.isDone ? undefined : list.next()))
  if (!next?.value || exchange.isDone) return undefined
  const text = partOf(next.value.json, true)
  if (!hold.grow(excessOf(text))) throw overloaded()
  return text
}

function excessOf(text: Buffer): number {
  return Math.max(0, text.length - SHORT_MAX_BYTES)
}

/**
 * A chunk's array as a part of a longer one: without its "]", and after the first one with ","
 * in place of "[".
 */
function partOf(json: string, hasBegun: boolean): Buffer {
  const bytes = Buffer.from(json)
  if (hasBegun) bytes.write(',')
  return bytes.subarray(0, -1)
}

/**
 * Makes a page of several chunks, whole. It is reserved as it grows, until it is sent. If its
 * client leaves, the work ends.
 * @throws HttpError `overloaded` without room, ClientGone
 */
function makePage(call: Call, list: PlantList, limit: number, first: PlantChunk) {
  return holding(call, call.options.responses, 0, async (hold) => {
    const texts: Buffer[] = []
    let [bytes, count] = [0, 0]
    let cutAt: bigint | undefined
    let chunk: PlantChunk | undefined = first
    while (chunk) {
      if (call.exchange.isDone) throw new ClientGone()
      const text = partOf(chunk.json, count > 0)
      // What has no room is read again for the next page.
      if (count > 0 && bytes + text.length > PAGE_MAX_BYTES) break
      texts.push(text)
      bytes += text.length
      if (bytes > SHORT_MAX_BYTES && !hold.grow(bytes)) throw overloaded()
      count += chunk.count
      cutAt = cutOf(chunk)
      if (cutAt === undefined || count === limit) break
      chunk = (await inTurn(call, () => list.next())).value
    }
    texts.push(Buffer.from(']'))
    return pageResponse(call, Buffer.concat(texts), limit, cutAt)
  })
}

/** The id of a chunk's last plant, if more follow. */
function cutOf(chunk: PlantChunk | undefined): bigint | undefined {
  return chunk?.isCut ? chunk.last : undefined
}

function pageResponse(
  call: Call,
  body: string | Buffer,
  limit?: number,
  cutAt?: bigint,
): HttpResponse {
  if (cutAt === undefined) return { status: 200, headers: [], body }
  // RFC 8288. No more than the last segment: the service does not know which prefix a proxy adds.
  // No less: resolvers of RFC 2396, such as Java's, read a query alone as one of the parent.
  const next = `plants?limit=${limit}&after=${writeCursor(call.owner, cutAt)}`
  return { status: 200, headers: ['Link', `<${next}>; rel="next"`], body }
}

/** @throws HttpError `limitInvalid` or `afterInvalid`. */
function readQuery(owner: string, query: string): PlantRange {
  if (query === '') return { after: undefined, limit: undefined }
  // URLSearchParams drops one leading "?". A second one belongs to a parameter's name.
  const parameters = new URLSearchParams(`?${query}`)
  const limit = readLimit(parameters.getAll('limit'))
  return { after: readAfter(owner, parameters.getAll('after')), limit }
}

function readLimit([digits, second]: readonly string[]): number | undefined {
  if (digits === undefined) return undefined
  const limit = Number(digits)
  const isUsable = /^[0-9]{1,10}$/.test(digits) && limit <= LIMIT_MAX
  if (!isUsable || second !== undefined) throw new HttpError('limitInvalid')
  return limit
}

function readAfter(owner: string, [cursor, second]: readonly string[]): bigint | undefined {
  if (cursor === undefined) return undefined
  const id = readCursor(owner, cursor)
  if (id === undefined || second !== undefined) throw new HttpError('afterInvalid')
  return id
}
