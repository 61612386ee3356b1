import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { Plant } from '../../dist/plants/plant.js'
import type { Caller } from '../../dist/auth/caller.js'
import type { PlantList } from '../../dist/plants/store.js'
import { ALICE, type Bare, listOf, startBare, chunkOf } from '../support/bare.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

setFlagsFromString('--expose-gc')
// V8 adds it to every context that is created from now on.
const collect = runInNewContext('gc') as () => void

const MIB = 2 ** 20
const LARGE: readonly Plant[] = [{ name: 'x'.repeat(MIB) }]
/** More than a socket's buffers hold of a response that no client reads. */
const CHUNKS = 40

/** HTTP over a store whose lists are long; the owner of a request is its bearer's token. */
function start(t: Parameters<typeof startBare>[0], answersMaxBytes: number): Promise<Bare> {
  return startBare(t, {
    answersMaxBytes,
    store: {
      list: (owner) =>
        listOf(owner === 'small' ? [[{ name: 'a' }]] : Array.from({ length: CHUNKS }, () => LARGE)),
    },
    authenticate: (owner) => ({ ...ALICE, owner }),
  })
}

/** A client that asks for the long list and reads nothing. */
async function stalled(port: number, owner: string): Promise<Wire> {
  const wire = await Wire.to(port)
  wire.socket.pause()
  return wire.write(head('GET', '/plants', { token: owner }))
}

async function ask(port: number, bytes: string): Promise<ReturnType<typeof verdict>> {
  const wire = await Wire.to(port)
  const [answer] = await wire.write(bytes).answers(1)
  wire.destroy()
  assert.ok(answer)
  const what = verdict(answer)
  assert.deepEqual(headerLines(answer, 'retry-after'), what === 'overloaded' ? ['1'] : [])
  return what
}

test('answers: with too many unread bytes, refuses until readers leave', async (t) => {
  const { port, answers } = await start(t, 4 * MIB)
  const readers: Wire[] = []
  const small = head('GET', '/plants', { token: 'small' })
  const create = postBytes({ id: 1, name: 'a' }, { token: 'small' })
  assert.deepEqual([await ask(port, small), await ask(port, create)], [200, 200])
  for (let reader = 0; reader < 8; reader++) {
    readers.push(await stalled(port, `owner-${reader}`))
    await until(
      'the reader has its response, or waits for room',
      () => answers.heldBytes >= Math.min(reader + 1, 4) * MIB,
    )
  }
  // At most one chunk beyond the bound: each chunk is counted in the tick that creates it.
  assert.ok(answers.heldBytes < 5.1 * MIB, String(answers.heldBytes))
  assert.deepEqual([await ask(port, small), await ask(port, create)], ['overloaded', 'overloaded'])
  for (const reader of readers) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
  assert.deepEqual([await ask(port, small), await ask(port, create)], [200, 200])
})

test('answers: one owner leaves room for others', async (t) => {
  const { port, answers } = await start(t, 8 * MIB)
  const readers: Wire[] = []
  for (let reader = 0; reader < 8; reader++) readers.push(await stalled(port, 'alice'))
  await until('alice holds her half', () => answers.heldBytes >= 4 * MIB)
  assert.ok(answers.heldBytes < 5.1 * MIB, String(answers.heldBytes))
  assert.equal(await ask(port, head('GET', '/plants', { token: 'alice' })), 'overloaded')
  assert.equal(await ask(port, head('GET', '/plants', { token: 'small' })), 200)
  for (const reader of readers) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: a list without room waits for some, and arrives whole', async (t) => {
  const { port, answers } = await start(t, 2 * MIB)
  const readers = await Promise.all(
    Array.from({ length: 6 }, (_, reader) => stalled(port, `owner-${reader}`)),
  )
  await until('there is no room', () => answers.heldBytes >= 2 * MIB)
  for (const reader of readers) reader.socket.resume()
  const found: unknown[] = []
  for (const reader of readers) {
    const [answer] = await reader.answers(1)
    assert.ok(answer)
    if (verdict(answer) !== 200) continue
    found.push(JSON.parse(answer.body))
    reader.destroy()
  }
  assert.ok(found.length >= 2)
  for (const list of found)
    assert.deepEqual(
      (list as readonly Plant[]).map(({ name }) => name.length),
      Array.from({ length: CHUNKS }, () => MIB),
    )
  await until('nothing is held', () => answers.heldBytes === 0)
})

test('answers: memory in use is what is counted; a piece keeps no whole chunk', async (t) => {
  let made = 0
  const list = (): PlantList => {
    let left = CHUNKS
    return {
      cutAt: undefined,
      next: () => (made++, left-- > 0 ? chunkOf(LARGE) : undefined),
      get ended() {
        return left === 0
      },
      close: () => {},
    }
  }
  const authenticate = (owner: string): Caller => ({ ...ALICE, owner })
  const { port, answers } = await startBare(t, {
    answersMaxBytes: 4 * MIB,
    store: { list },
    authenticate,
  })
  const readers: Wire[] = []
  for (let reader = 0; reader < 40; reader++) {
    const before = made
    readers.push(await stalled(port, `owner-${reader}`))
    await until(
      'the reader has its first chunk, or there is no room',
      () => made > before || answers.heldBytes >= 4 * MIB,
    )
  }
  await until('there is no room', () => answers.heldBytes >= 4 * MIB)
  // The chunks of the readers that wait for room would be 40 MiB.
  let usedBytes = Infinity
  await until('no more is in memory than is counted', () => {
    collect()
    usedBytes = process.memoryUsage().arrayBuffers
    return usedBytes < 16 * MIB
  })
  for (const reader of readers) reader.destroy()
  await until('nothing is held', () => answers.heldBytes === 0)
})
