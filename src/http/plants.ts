import { setTimeout as sleep } from 'node:timers/promises'
import { ClientGone, HttpError } from '../errors.ts'
import type { FairQueue } from '../ops/fair-queue.ts'
import { type NewPlant, type Plant, type InvalidMember, readNewPlant } from '../plants/plant.ts'
import type { PlantList, PlantRange, PlantStore } from '../plants/store.ts'
import { checkBodyHeaders, readBody, textOf } from './body.ts'
import { type Hold, type MemoryBudget, overloaded } from './budget.ts'
import { readCursor, writeCursor } from './cursor.ts'
import { readObject } from './json.ts'
import type { PageCache } from './page-cache.ts'
import { type HttpResponse, jsonResponse, PIECE_MAX_BYTES, type TextStream } from './response.ts'
import type { Call } from './router.ts'

const LIMIT_MAX = 2 ** 31 - 1
const EMPTY = Buffer.from('[]')
const COMMA = 0x2c
/**
 * A body of so many bytes is read in a millisecond or two, whatever is in it. A longer one waits
 * for its turn.
 */
const SHORT_BYTES = 16 * 1024
/** How often an open list asks for room where answers under way have taken all of it. */
const ROOM_CHECK_MS = 100

export interface PlantOptions {
  readonly store: PlantStore
  readonly pages: PageCache
  /** Work that may take a millisecond or more waits here for its owner's turn. */
  readonly queue: FairQueue
  /** Memory for bodies that are read, and for creates that wait. */
  readonly bodies: MemoryBudget
  /** Memory for answers that clients have not taken yet. */
  readonly answers: MemoryBudget
  readonly maxBodyBytes: number
}

/** POST /plants */
export function createPlant(options: PlantOptions): (call: Call) => Promise<HttpResponse> {
  const { store, pages, queue, bodies, answers, maxBodyBytes } = options
  return async ({ exchange, owner }) => {
    checkBodyHeaders(exchange, maxBodyBytes)
    // The answer repeats the plant.
    if (!answers.hasRoom(owner, exchange.headers.contentLengthBytes)) throw overloaded()
    const hold = bodies.take(owner, exchange.headers.contentLengthBytes ?? maxBodyBytes)
    try {
      const body = await readBody(exchange, maxBodyBytes)
      // Of a body that came without its length the longest was counted.
      if (exchange.headers.contentLengthBytes === undefined) hold(body.length)
      const isShort = body.length <= SHORT_BYTES
      const plant = isShort ? readPlant(body) : await queue.run(owner, () => readPlant(body))
      const created = await store.create(owner, plant)
      switch (created) {
        case 'stored':
          pages.invalidate(owner)
          return isShort ? plantResponse(plant) : await queue.run(owner, () => plantResponse(plant))
        case 'conflict':
          throw new HttpError('idTaken')
      }
    } finally {
      hold(0)
    }
  }
}

/** @throws HttpError that says what is wrong with the body. */
function readPlant(body: Buffer): NewPlant {
  const plant = readNewPlant(readObject(textOf(body), ['id', 'name', 'tag']))
  if (typeof plant === 'string') throw invalidMember(plant)
  return plant
}

function plantResponse(plant: Plant): HttpResponse {
  return jsonResponse(200, publicPlant(plant))
}

/** The Plant shape and nothing else, in one order of members. */
function publicPlant({ name, tag }: Plant): Plant {
  return tag === undefined ? { name } : { name, tag }
}

function invalidMember(flaw: InvalidMember): HttpError {
  switch (flaw) {
    case 'name':
      return new HttpError('nameInvalid')
    case 'id':
      return new HttpError('idInvalid')
    case 'tag':
      return new HttpError('tagInvalid')
  }
}

/** GET /plants */
export function listPlants(
  options: PlantOptions,
): (call: Call) => HttpResponse | Promise<HttpResponse> {
  const { store, pages, queue, answers } = options
  return ({ exchange, owner, query }) => {
    if (!answers.hasRoom(owner)) throw overloaded()
    const cached = pages.get(owner, query)
    if (cached) return cached
    return queue.run(owner, () => {
      if (exchange.req.socket.destroyed) throw new ClientGone()
      const range = readRange(owner, query)
      // Asked again: others may have had their turn in between.
      if (!answers.hasRoom(owner)) throw overloaded()
      const list = store.list(owner, range)
      if (list instanceof Promise)
        return list.then((found) =>
          queue.run(owner, () => lateListResponse(found, owner, range, options)),
        )
      const answer = listResponse(list, owner, range, options)
      // Only what was made in one piece of work: a create may have come between the parts of
      // anything else.
      if (!(answer instanceof Promise)) pages.add(owner, query, answer)
      return answer
    })
  }
}

function readRange(owner: string, query: string): PlantRange {
  if (query === '') return { after: undefined, limit: undefined }
  // It would drop a first "?", which belongs to a name here.
  const parameters = new URLSearchParams(`?${query}`)
  const [limitText, secondLimit] = parameters.getAll('limit')
  const limit = limitText === undefined ? undefined : Number(limitText)
  if (
    limitText !== undefined &&
    (secondLimit !== undefined || !/^[0-9]{1,10}$/.test(limitText) || Number(limit) > LIMIT_MAX)
  )
    throw new HttpError('limitInvalid')
  const [cursor, secondCursor] = parameters.getAll('after')
  const after = cursor === undefined ? undefined : readCursor(owner, cursor)
  if (cursor !== undefined && (secondCursor !== undefined || after === undefined))
    throw new HttpError('afterInvalid')
  return { after, limit }
}

/** A list that was counted first, in pieces: whether there is room is asked once more. */
function lateListResponse(
  list: PlantList,
  owner: string,
  range: PlantRange,
  options: PlantOptions,
): HttpResponse | Promise<HttpResponse> {
  if (options.answers.hasRoom(owner)) return listResponse(list, owner, range, options)
  list.close()
  throw overloaded()
}

/**
 * A list of one chunk is sent whole, with its length; a longer one chunk by chunk, as the client
 * takes it.
 */
function listResponse(
  list: PlantList,
  owner: string,
  { limit }: PlantRange,
  options: PlantOptions,
): HttpResponse | Promise<HttpResponse> {
  // RFC 8288: a query alone, since the service does not know what stands before /plants.
  const headers =
    list.cutAt === undefined
      ? []
      : ['Link', `<?limit=${limit}&after=${writeCursor(owner, list.cutAt)}>; rel="next"`]
  const answer = (first: Buffer | undefined): HttpResponse => {
    const body =
      list.ended || first === undefined
        ? (first ?? EMPTY)
        : new PlantStream(list, first, owner, options)
    return { status: 200, headers, body }
  }
  const leave = (error: unknown): never => {
    list.close()
    throw error
  }
  try {
    const first = list.next()
    return first instanceof Promise ? first.then(answer).catch(leave) : answer(first)
  } catch (error) {
    return leave(error)
  }
}

/**
 * A list as one JSON array. The chunk that its client has not taken yet counts as an answer under
 * way.
 */
class PlantStream implements TextStream {
  readonly #list: PlantList
  readonly #owner: string
  readonly #queue: FairQueue
  readonly #answers: MemoryBudget
  readonly #hold: Hold
  #first: Buffer | undefined
  #keptBytes = 0
  #closed = false

  constructor(list: PlantList, first: Buffer, owner: string, { queue, answers }: PlantOptions) {
    this.#list = list
    this.#first = first
    this.#owner = owner
    this.#queue = queue
    this.#answers = answers
    this.#hold = answers.hold(owner, first.length + (list.heldBytes ?? 0))
  }

  close(): void {
    this.#closed = true
    this.#first = undefined
    this.#list.close()
    this.#hold(0)
  }

  /** Each chunk without its last bracket, and each but the first with a comma for its first one. */
  async *[Symbol.asyncIterator](): AsyncGenerator<Buffer, void, undefined> {
    let begins = true
    let chunk = this.#first
    this.#first = undefined
    while (chunk !== undefined) {
      const { length }: Buffer = chunk
      if (length > EMPTY.length) {
        if (!begins) chunk[0] = COMMA
        begins = false
        for (let at = 0; at < length - 1; at += PIECE_MAX_BYTES)
          yield pieceOf(chunk, at, length - 1)
      }
      // Forgotten at once: the next one may have to wait for long.
      chunk = undefined
      chunk = await this.#next(length)
    }
    yield begins ? EMPTY : EMPTY.subarray(1)
  }

  /**
   * The chunk before it was taken. The next one waits for its turn and for room; the connection's
   * clock bounds that.
   */
  async #next(taken: number): Promise<Buffer | undefined> {
    // Node keeps the last piece that it has written until there is another.
    this.#keptBytes = Math.min(taken, PIECE_MAX_BYTES) + (this.#list.heldBytes ?? 0)
    if (!this.#closed) this.#hold(this.#keptBytes)
    while (!this.#closed) {
      const made = await this.#queue.run(this.#owner, () => this.#makeNext())
      if (made !== 'no room') return made
      await sleep(ROOM_CHECK_MS)
    }
    return undefined
  }

  /** Whether there is room is asked in the same tick in which the chunk is made and counted. */
  #makeNext(): Promise<Buffer | undefined> | Buffer | undefined | 'no room' {
    if (this.#closed) return undefined
    // Without what this list keeps itself, or many lists would wait for each other.
    this.#hold(0)
    if (!this.#answers.hasRoom(this.#owner)) {
      this.#hold(this.#keptBytes)
      return 'no room'
    }
    const chunk = this.#list.next()
    return chunk instanceof Promise ? chunk.then((made) => this.#count(made)) : this.#count(chunk)
  }

  #count(chunk: Buffer | undefined): Buffer | undefined {
    if (!this.#closed) this.#hold((chunk?.length ?? 0) + (this.#list.heldBytes ?? 0))
    return chunk
  }
}

/**
 * What follows `at`, up to `end`. A copy where it is a part: Node keeps the last one, and with it
 * all that it is cut from.
 */
function pieceOf(chunk: Buffer, at: number, end: number): Buffer {
  if (end <= PIECE_MAX_BYTES) return chunk.subarray(0, end)
  return Buffer.from(chunk.subarray(at, Math.min(at + PIECE_MAX_BYTES, end)))
}
