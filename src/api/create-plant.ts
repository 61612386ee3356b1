/* POST /plants. */

import { ClientGone, HttpError } from '../errors.ts'
import { type HttpResponse, jsonResponse } from '../http/response.ts'
import { Overloaded } from '../limits/budget.ts'
import { type NewPlant, type Plant, readNewPlant } from '../plants/plant.ts'
import { type Call, inTurn } from './call.ts'
import { checkBodyHeaders, decodeBody } from './json-body.ts'
import { readObject } from './json.ts'

/** What a create that waits holds besides its plant: 10 KiB, 54 with most headers and trailers. */
const WAITING_BYTES = 16 * 1024
/** The response to a body of this length is made in 3 µs: as a piece it would wait once more. */
const SHORT_BODY_BYTES = 1024

/** The failure of a member that is missing or wrong. */
const INVALID = { name: 'nameInvalid', id: 'idInvalid', tag: 'tagInvalid' } as const

/** POST /plants, from the media type on. */
export async function createPlant(call: Call): Promise<HttpResponse> {
  const { exchange, owner } = call
  const { store, pageCache, queue, bodies, maxBodyBytes } = call.options
  checkBodyHeaders(exchange, maxBodyBytes)
  // A chunked body reserves its buffer as it grows.
  const hold = bodies.reserve(owner, exchange.body.contentLength)
  try {
    // It was refused, or its client has left, while the token was verified.
    if (exchange.isOver) throw new ClientGone()
    let body: Buffer | undefined = await exchange.body.read(maxBodyBytes, hold)
    const bytes = body.length
    // Bound: no closure keeps the body.
    const plant = await inTurn(call, readPlant.bind(undefined, body))
    // It is free while the plant waits for the store.
    body = undefined
    if (!hold.set(bytes + WAITING_BYTES)) throw new Overloaded('too many creates wait')
    const created = await store().create(owner, plant)
    if (created !== 'stored') throw new HttpError(created === 'conflict' ? 'idTaken' : created)
    // The response repeats the plant, and is no longer than the body.
    hold.set(bytes)
    pageCache.invalidate(owner, plant.id)
    if (bytes <= SHORT_BODY_BYTES) return plantResponse(plant)
    // Without a place in the queue: the plant is stored, and `bodies` bounds how many there are.
    return await queue.run(owner, () => plantResponse(plant), 0)
  } finally {
    // Once both have ended: the response may have that memory. Bound: no closure keeps the plant.
    exchange.whenDone(hold.set.bind(undefined, 0))
  }
}

/** @throws HttpError that says what is wrong with the body. */
function readPlant(body: Buffer): NewPlant {
  const members = readObject(decodeBody(body), ['id', 'name', 'tag'])
  const plant = readNewPlant(members)
  if (typeof plant !== 'string') return plant
  throw new HttpError(INVALID[plant], [], undefined, sentenceOf(members, plant))
}

/** Says what came in place of a wrong member, if that is known. */
function sentenceOf(members: ReadonlyMap<string, unknown>, name: string): string | undefined {
  if (!members.has(name)) return 'It is missing.'
  const value = members.get(name)
  if (typeof value === 'bigint') return 'It is a number.'
  if (typeof value !== 'string') return undefined
  return value.isWellFormed() ? 'It is a text.' : 'It is a text that is not valid Unicode.'
}

function plantResponse({ name, tag }: Plant): HttpResponse {
  return jsonResponse(200, tag === undefined ? { name } : { name, tag })
}
