import { ClientGone, type Condition, HttpError } from '../errors.ts'
import type { FairQueue } from '../ops/fair-queue.ts'
import { type NewPlant, type Plant, readNewPlant } from '../plants/plant.ts'
import type { PlantList, PlantRange, PlantStore } from '../plants/store.ts'
import { checkBodyHeaders, readBody, textOf } from './body.ts'
import { type Hold, type MemoryBudget, overloaded } from './budget.ts'
import { readCursor, writeCursor } from './cursor.ts'
import type { Exchange } from './exchange.ts'
import { readObject } from './json.ts'
import type { PageCache } from './page-cache.ts'
import { PlantStream } from './plant-stream.ts'
import { bodyOf, type HttpResponse, jsonResponse } from './response.ts'

const LIMIT_MAX = 2 ** 31 - 1
/** Any body of this length is parsed within 2 ms. A longer one waits for its owner's turn. */
const SHORT_BODY_BYTES = 16 * 1024

/** A request of an owner who may make it. */
export interface Call {
  readonly exchange: Exchange
  readonly owner: string
  /** The query without "?", as the client sent it. */
  readonly query: string
}

export interface PlantOptions {
  readonly store: { readonly current: PlantStore }
  readonly pages: PageCache
  /** Runs work that may take a millisecond or more; owners take turns. */
  readonly queue: FairQueue
  /** Memory for bodies that are read, and for creates that wait. */
  readonly bodies: MemoryBudget
  /** Memory for responses that clients have not read yet. */
  readonly answers: MemoryBudget
  readonly maxBodyBytes: number
}

/** POST /plants, from the media type on. */
export async function createPlant(
  { exchange, owner }: Call,
  { store, pages, queue, bodies, answers, maxBodyBytes }: PlantOptions,
): Promise<HttpResponse> {
  checkBodyHeaders(exchange, maxBodyBytes)
  const { contentLengthBytes } = exchange.headers
  // The response repeats the plant.
  if (!answers.hasRoom(owner, contentLengthBytes)) throw overloaded()
  // A chunked body reserves its buffer as it grows.
  const hold = bodies.take(owner, contentLengthBytes ?? 0)
  let answer: Hold | undefined
  try {
    const body = await readBody(exchange, maxBodyBytes, hold)
    hold.set(body.length)
    // It is no longer than the body. Once it is sent, the connection counts it.
    answer = answers.take(owner, body.length)
    const isShort = body.length <= SHORT_BODY_BYTES
    const plant = isShort ? readPlant(body) : await queue.run(owner, () => readPlant(body))
    if ((await store.current.create(owner, plant)) === 'conflict') throw new HttpError('idTaken')
    pages.invalidate(owner, plant.id)
    return isShort ? plantResponse(plant) : await queue.run(owner, () => plantResponse(plant))
  } finally {
    hold.set(0)
    answer?.set(0)
  }
}

/** @throws HttpError that says what is wrong with the body. */
function readPlant(body: Buffer): NewPlant {
  const plant = readNewPlant(readObject(textOf(body), ['id', 'name', 'tag']))
  if (typeof plant === 'string') throw new HttpError(`${plant}Invalid`)
  return plant
}

function plantResponse({ name, tag }: Plant): HttpResponse {
  return jsonResponse(200, tag === undefined ? { name } : { name, tag })
}

/** GET /plants, from the parameters on. A cached page is returned at once. */
export function listPlants(
  { exchange, owner, query }: Call,
  options: PlantOptions,
): HttpResponse | Promise<HttpResponse> {
  const { store, pages, queue, answers } = options
  if (!answers.hasRoom(owner)) throw overloaded()
  const cached = pages.get(owner, query)
  if (cached) return cached
  return queue.run(owner, () => {
    if (exchange.req.socket.destroyed) throw new ClientGone()
    const range = readRange(owner, query)
    // Again: other requests may have run while this one waited.
    if (!answers.hasRoom(owner)) throw overloaded()
    const respond = (list: PlantList) => listResponse(list, owner, range, options)
    const list = store.current.list(owner, range)
    if (list instanceof Promise) return list.then((it) => queue.run(owner, () => respond(it)))
    const response = respond(list)
    // A response that was awaited is not cached: a create may have come in between.
    if (!(response instanceof Promise)) pages.add(owner, query, response, list.cutAt)
    return response
  })
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

/** A list of one chunk has a Content-Length; a longer one is made while its client reads it. */
function listResponse(
  list: PlantList,
  owner: string,
  { limit }: PlantRange,
  { answers, queue }: PlantOptions,
): HttpResponse | Promise<HttpResponse> {
  const fail = (error: unknown): never => {
    list.close()
    throw error
  }
  const responseOf = (first = '[]'): HttpResponse => ({
    status: 200,
    headers: list.cutAt === undefined ? [] : ['Link', nextPage(owner, limit, list.cutAt)],
    body: list.ended ? bodyOf(first) : new PlantStream(list, first, owner, queue, answers),
  })
  try {
    // Again, for a list that was awaited.
    if (!answers.hasRoom(owner)) throw overloaded()
    const first = list.next()
    return first instanceof Promise ? first.then(responseOf).catch(fail) : responseOf(first)
  } catch (error) {
    return fail(error)
  }
}

/** RFC 8288. A query alone: the service does not know which path prefix a proxy adds. */
function nextPage(owner: string, limit: number | undefined, cutAt: bigint): string {
  return `<?limit=${limit}&after=${writeCursor(owner, cutAt)}>; rel="next"`
}
