import { HttpError } from '../errors.ts'
import { readBody } from '../http/body.ts'
import { type HttpResponse, jsonResponse } from '../http/response.ts'
import type { Hold } from '../ops/budget.ts'
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
  const hold = bodies.reserve(owner, contentLengthBytes ?? 0)
  let answer: Hold | undefined
  try {
    let body: Buffer | undefined = await readBody(exchange, maxBodyBytes, hold)
    hold.set(body.length)
    // Once it is sent, the connection counts it.
    answer = answers.reserve(owner, body.length)
    const isShort = body.length <= SHORT_BODY_BYTES
    const plant = isShort
      ? readPlant(body)
      : await inTurn(call, readPlant.bind(undefined, body))
    // It is free while the plant waits for the store.
    body = undefined
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
