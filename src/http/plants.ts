import { setImmediate as nextTurn } from 'node:timers/promises'
import { Problem } from '../errors.ts'
import { type Plant, type PlantFlaw, readNewPlant } from '../plants/plant.ts'
import type { PlantList, PlantRange, PlantStore } from '../plants/store.ts'
import { checkBodyHeaders, readText } from './body.ts'
import type { MemoryBudget } from './budget.ts'
import { readCursor, writeCursor } from './cursor.ts'
import { readObject } from './json.ts'
import type { RememberedPages } from './pages.ts'
import { type Answer, jsonAnswer, type TextStream } from './respond.ts'
import type { Call } from './router.ts'

const LIMIT_MAX = 2 ** 31 - 1
const EMPTY = Buffer.from('[]')
const COMMA = 0x2c

export interface CreateOptions {
  readonly store: PlantStore
  readonly pages: RememberedPages
  readonly budget: MemoryBudget
  readonly maxBodyBytes: number
}

/** POST /plants */
export function createPlant({ store, pages, budget, maxBodyBytes }: CreateOptions): (call: Call) => Promise<Answer> {
  return async ({ exchange, owner }) => {
    checkBodyHeaders(exchange, maxBodyBytes)
    const hold = budget.take(owner, exchange.head.contentLengthBytes ?? maxBodyBytes)
    try {
      const text = await readText(exchange, maxBodyBytes)
      // Of a body that came without its length the longest was counted.
      if (exchange.head.contentLengthBytes === undefined) hold(Buffer.byteLength(text))
      const plant = readNewPlant(readObject(text, ['id', 'name', 'tag']))
      if (typeof plant === 'string') throw flawProblem(plant)
      const created = await store.create(owner, plant)
      switch (created) {
        case 'stored':
          pages.forget(owner)
          return jsonAnswer(200, publicPlant(plant))
        case 'conflict':
          throw new Problem('idTaken')
      }
    } finally {
      hold(0)
    }
  }
}

/** The Plant shape and nothing else, in one order of members. */
function publicPlant({ name, tag }: Plant): Plant {
  return tag === undefined ? { name } : { name, tag }
}

function flawProblem(flaw: PlantFlaw): Problem {
  switch (flaw) {
    case 'name':
      return new Problem('nameInvalid')
    case 'id':
      return new Problem('idInvalid')
    case 'tag':
      return new Problem('tagInvalid')
  }
}

/** GET /plants */
export function listPlants(store: PlantStore, pages: RememberedPages): (call: Call) => Answer | Promise<Answer> {
  return ({ owner, query }) => {
    const remembered = pages.get(owner, query)
    if (remembered) return remembered
    const range = readRange(owner, query)
    const list = store.list(owner, range)
    if (list instanceof Promise) return list.then((found) => listAnswer(found, owner, range.limit))
    const answer = listAnswer(list, owner, range.limit)
    // Only what was made in this turn: a create may have come between the parts of anything else.
    if (!(answer instanceof Promise)) pages.add(owner, query, answer)
    return answer
  }
}

function readRange(owner: string, query: string): PlantRange {
  if (query === '') return { after: undefined, limit: undefined }
  // It would drop a first "?", which belongs to a name here.
  const parameters = new URLSearchParams(`?${query}`)
  const [limitText, secondLimit] = parameters.getAll('limit')
  const limit = limitText === undefined ? undefined : Number(limitText)
  if (limitText !== undefined && (secondLimit !== undefined || !/^[0-9]{1,10}$/.test(limitText) || Number(limit) > LIMIT_MAX)) throw new Problem('limitInvalid')
  const [cursor, secondCursor] = parameters.getAll('after')
  const after = cursor === undefined ? undefined : readCursor(owner, cursor)
  if (cursor !== undefined && (secondCursor !== undefined || after === undefined)) throw new Problem('afterInvalid')
  return { after, limit }
}

/** A list of one stretch is sent whole, with its length; a longer one stretch by stretch, as the client takes it. */
function listAnswer(list: PlantList, owner: string, limit: number | undefined): Answer | Promise<Answer> {
  // RFC 8288: a query alone, since the service does not know what stands before /plants.
  const headers = list.cutAt === undefined ? [] : ['Link', `<?limit=${limit}&after=${writeCursor(owner, list.cutAt)}>; rel="next"`]
  const answer = (first: Stretch, second: Stretch): Answer => ({ status: 200, headers, body: second === undefined ? (first ?? EMPTY) : plantStream(list, [first, second]) })
  const leave = (error: unknown): never => {
    list.close()
    throw error
  }
  try {
    const first = list.next()
    if (first instanceof Promise) return first.then(async (stretch) => answer(stretch, await list.next())).catch(leave)
    const second = list.next()
    return second instanceof Promise ? second.then((stretch) => answer(first, stretch)).catch(leave) : answer(first, second)
  } catch (error) {
    return leave(error)
  }
}

type Stretch = Buffer | undefined

function plantStream(list: PlantList, begun: Stretch[]): TextStream {
  return { [Symbol.asyncIterator]: () => streamPlants(list, begun), close: () => list.close() }
}

/** One array of the stretches: each without its last bracket, and but for the first with a comma for its first one. */
async function* streamPlants(list: PlantList, begun: Stretch[]): AsyncGenerator<Buffer, void, undefined> {
  let begins = true
  for (;;) {
    const stretch = begun.length > 0 ? begun.shift() : await list.next()
    if (stretch === undefined) break
    if (stretch.length > EMPTY.length) {
      if (!begins) stretch[0] = COMMA
      begins = false
      yield stretch.subarray(0, -1)
    }
    // A client that takes all at once must not keep the others waiting.
    await nextTurn()
  }
  yield begins ? EMPTY : EMPTY.subarray(1)
}
