/* GET /plants. */

import { ClientGone, HttpError } from '../errors.ts'
import { bodyOf, type BodyStream, type HttpResponse, SHORT_MAX_BYTES } from '../http/response.ts'
import { type Hold, Overloaded } from '../limits/budget.ts'
import type { PlantChunk, PlantList, PlantRange } from '../plants/store.ts'
import { type Call, inTurn, reserved } from './call.ts'
import { readCursor, writeCursor } from './cursor.ts'

const LIMIT = /^[0-9]{1,10}$/
const LIMIT_MAX = 2 ** 31 - 1
/** A page has at most this much, or one plant. */
const PAGE_MAX_BYTES = 8 * 1024 * 1024

/** Returns a list's next chunk, and undefined after the last. */
type ReadChunk = () => PlantChunk | undefined | Promise<PlantChunk | undefined>

/** GET /plants, from the parameters on. A cached page is returned at once. */
export function listPlants(call: Call): HttpResponse | Promise<HttpResponse> {
  const { owner, query } = call
  const { store, pageCache } = call.options
  const cached = pageCache.get(owner, query)
  if (cached) return reserved(call, cached)
  return inTurn(call, () => {
    const range = readQuery(owner, query)
    const read = readerOf(call, store().list(owner, range))
    const first = read()
    if (first instanceof Promise) return first.then((chunk) => respond(call, read, range, chunk))
    const response = respond(call, read, range, first)
    // A response that was awaited is not cached: a create may have come in between.
    if (!store().isShared && !(response instanceof Promise))
      pageCache.add(owner, query, response, first?.next)
    return response
  })
}

/**
 * Reads a list without its empty chunks, each of which takes a turn. Of a list without plants it
 * returns one empty chunk.
 */
function readerOf(call: Call, list: PlantList): ReadChunk {
  let hasChunk = false
  const take = ({ value }: IteratorResult<PlantChunk, undefined>): ReturnType<ReadChunk> => {
    if (value?.count === 0 && value.next !== undefined) return inTurn(call, read)
    if (value?.count === 0 && hasChunk) return undefined
    hasChunk = true
    return value
  }
  const read = (): ReturnType<ReadChunk> => {
    const step = list.next()
    return step instanceof Promise ? step.then(take) : take(step)
  }
  return read
}

/** At once, unless it is a page of several chunks. */
function respond(call: Call, read: ReadChunk, { limit }: PlantRange, first?: PlantChunk) {
  if (!first) throw new Error('a list has no chunk')
  const { json, count, next } = first
  // One chunk has a Content-Length, also without a limit.
  if (next === undefined || count === limit)
    return reserved(call, pageOf(call, bodyOf(json), limit, next))
  if (limit !== undefined) return makePage(call, read, limit, [first])
  const text = partOf(json, false)
  const hold = call.options.responses.reserve(call.owner, excessOf(text))
  call.exchange.whenDone(() => hold.set(0))
  return { status: 200, headers: [], body: streamList(call, read, hold, text) }
}

/**
 * A list of several chunks as one JSON array. One chunk at a time is in memory: each is made when
 * the one before it has been taken, and once it is the owner's turn. What is above the length that
 * each connection may hold is reserved.
 */
function streamList(call: Call, read: ReadChunk, hold: Hold, first: Buffer): BodyStream {
  let [text, isOver]: [Buffer | undefined, boolean] = [first, false]
  return async () => {
    if (isOver) return undefined
    const part = text ?? (await nextPart(call, read, hold))
    // It is free while the next one waits for its turn.
    text = undefined
    isOver = part === undefined
    return part ?? Buffer.from(']')
  }
}

/** @throws Overloaded if there is no room: the list cannot go on. ClientGone */
async function nextPart(call: Call, read: ReadChunk, hold: Hold) {
  hold.set(0)
  const chunk = await inTurn(call, read)
  if (!chunk || call.exchange.isDone) return undefined
  const text = partOf(chunk.json, true)
  if (!hold.set(excessOf(text))) throw new Overloaded('no room for the next part')
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
 * Makes a page of several chunks, whole. It is reserved as it grows, until it is sent, and until
 * this ends. If its client leaves, the work ends. `left` are chunks that were read: it is emptied,
 * because an async function keeps its parameters.
 * @throws Overloaded without room, ClientGone
 */
async function makePage(call: Call, read: ReadChunk, limit: number, left: PlantChunk[]) {
  const { exchange, options, owner } = call
  const hold = options.responses.reserve(owner, 0)
  const texts: Buffer[] = []
  let [bytes, count] = [0, 0]
  let next: bigint | undefined
  /** Returns true if another chunk is to follow. */
  const addChunk = async (): Promise<boolean> => {
    const chunk = left.shift() ?? (await inTurn(call, read))
    if (exchange.isDone) throw new ClientGone()
    const text = chunk && partOf(chunk.json, count > 0)
    // What has no room is read again for the next page.
    if (!text || (count > 0 && bytes + text.length > PAGE_MAX_BYTES)) return false
    texts.push(text)
    bytes += text.length
    if (bytes > SHORT_MAX_BYTES && !hold.set(bytes)) throw new Overloaded()
    count += chunk.count
    next = chunk.next
    return next !== undefined && count < limit
  }
  try {
    // A call for each chunk: the loop would keep one while it waits for the next.
    while (await addChunk());
    texts.push(Buffer.from(']'))
    // The page is there twice now, but in this step alone: no two are joined at once.
    return pageOf(call, Buffer.concat(texts), limit, next)
  } finally {
    // Bound: a closure would keep the chunks.
    exchange.whenDone(hold.set.bind(undefined, 0))
  }
}

/** `next` as in a chunk. */
function pageOf({ owner }: Call, body: string | Buffer, limit?: number, next?: bigint) {
  const page: HttpResponse = { status: 200, headers: [], body }
  if (next === undefined) return page
  // RFC 8288. No more than the last segment: the service does not know which prefix a proxy adds.
  // No less: resolvers of RFC 2396, such as Java's, read a query alone as one of the parent.
  const target = `plants?limit=${limit}&after=${writeCursor(owner, next)}`
  return { ...page, headers: ['Link', `<${target}>; rel="next"`] }
}

/** @throws HttpError `limitInvalid` or `afterInvalid`. */
function readQuery(owner: string, query: string): PlantRange {
  // URLSearchParams drops one leading "?". A second one belongs to a parameter's name.
  const parameters = new URLSearchParams(`?${query}`)
  const [digits, secondLimit] = parameters.getAll('limit')
  const isLimit = digits === undefined || (LIMIT.test(digits) && Number(digits) <= LIMIT_MAX)
  if (!isLimit || secondLimit !== undefined) throw new HttpError('limitInvalid')
  const [cursor, secondCursor] = parameters.getAll('after')
  const after = cursor === undefined ? undefined : readCursor(owner, cursor)
  const isCursor = cursor === undefined || after !== undefined
  if (!isCursor || secondCursor !== undefined) throw new HttpError('afterInvalid')
  return { after, limit: digits === undefined ? undefined : Number(digits) }
}
