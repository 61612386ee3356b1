import { HttpError } from '../errors.ts'
import { readBody } from '../http/body.ts'
import { type HttpResponse, jsonResponse } from '../http/response.ts'
import { type Hold, overloaded } from '../ops/budget.ts'
import { type NewPlant, type Plant, readNewPlant } from '../plants/plant.ts'
import { type Call, checkRoom, inTurn } from './call.ts'
import { checkBodyHeaders, textOf } from './json-body.ts'
import { readObject } from './json.ts'

/** Any body of this length is parsed within 2 ms. A longer one waits for its owner's turn. */
const SHORT_BODY_BYTES = 16 * 1024

/** POST /plants, from the media type on. */
export async function createPlant(call: Call): Promise<HttpResponse> {
  const { exchange, owner } = call
  const { store, pages, queue, bodies, answers, maxBodyBytes } = call.options
  checkBodyHeaders(exchange, maxBodyBytes)
  const { contentLengthBytes } = exchange.headers
  // The response repeats the plant, and is no longer than the body.
  checkRoom(call, contentLengthBytes)
  // A chunked body reserves its buffer as it grows.
  const hold = bodies.take(owner, contentLengthBytes ?? 0)
  const answer = answers.hold(owner, 0)
  try {
    const { plant, isShort } = await receive(call, hold, answer)
    if ((await store.current.create(owner, plant)) === 'conflict') throw new HttpError('idTaken')
    pages.invalidate(owner, plant.id)
    return isShort ? plantResponse(plant) : await queue.run(owner, () => plantResponse(plant))
  } finally {
    hold.set(0)
    // Once it is sent, the connection counts it.
    answer.set(0)
  }
}

/** A function of its own, so that the body is free while its plant waits for the store. */
async function receive(
  call: Call,
  hold: Hold,
  answer: Hold,
): Promise<{ readonly plant: NewPlant; readonly isShort: boolean }> {
  const body = await readBody(call.exchange, call.options.maxBodyBytes, hold)
  hold.set(body.length)
  if (!answer.grow(body.length)) throw overloaded()
  const isShort = body.length <= SHORT_BODY_BYTES
  return { plant: isShort ? readPlant(body) : await inTurn(call, () => readPlant(body)), isShort }
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
