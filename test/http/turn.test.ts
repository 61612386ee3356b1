import assert from 'node:assert/strict'
import { test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { TurnEnd } from '../../dist/http/turn.js'
import { listOf, startBare } from '../support/bare.ts'
import { startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

function recording(): { readonly sent: number[]; readonly add: (count: number) => void } {
  const turnEnd = new TurnEnd()
  const sent: number[] = []
  let next = 0
  return {
    sent,
    add(count) {
      for (let i = 0; i < count; i++) {
        const id = next++
        turnEnd.add(() => sent.push(id))
      }
    },
  }
}

test('turn: an answer that is alone in its turn waits for nothing', async () => {
  const { sent, add } = recording()
  for (const expected of [[0], [0, 1], [0, 1, 2]]) {
    add(1)
    assert.deepEqual(sent, expected)
    await nextTurn()
  }
})

test('turn: of several answers behind a quiet turn only the first is sent at once', async () => {
  const { sent, add } = recording()
  add(3)
  assert.deepEqual(sent, [0])
  await nextTurn()
  assert.deepEqual(sent, [0, 1, 2])
})

test('turn: behind a busy turn all wait for the end of theirs, and one alone is again sent at once behind that', async () => {
  const { sent, add } = recording()
  add(2)
  await nextTurn()
  add(1)
  assert.deepEqual(sent, [0, 1])
  await nextTurn()
  assert.deepEqual(sent, [0, 1, 2])
  add(1)
  assert.deepEqual(sent, [0, 1, 2, 3])
})

test('turn: no more than 32 answers wait, and all are sent in their order, once', async () => {
  const { sent, add } = recording()
  const all = Array.from({ length: 1000 }, (_, i) => i)
  for (let i = 0; i < 1000; i++) {
    add(1)
    assert.ok(i - sent.length < 32, `${sent.length} of ${i + 1} sent`)
  }
  await nextTurn()
  assert.deepEqual(sent, all)
})

test('turn: what is added while others are sent is sent too', async () => {
  const turnEnd = new TurnEnd()
  const sent: string[] = []
  const chain = (name: string, left: number): void => {
    sent.push(`${name}${left}`)
    if (left > 0) turnEnd.add(() => chain(name, left - 1))
  }
  for (const name of ['a', 'b', 'c']) turnEnd.add(() => chain(name, 50))
  for (let turns = 0; turns < 100 && sent.length < 153; turns++) await nextTurn()
  assert.equal(sent.length, 153)
  for (const name of ['a', 'b', 'c']) {
    assert.deepEqual(sent.filter((each) => each.startsWith(name)), Array.from({ length: 51 }, (_, i) => `${name}${50 - i}`))
  }
})

test('turn: of many clients that ask in one turn each gets its own answers in their order, whoever of them goes away', async (t) => {
  const { port } = await startService(t)
  const wires = await Promise.all(Array.from({ length: 100 }, () => Wire.to(port)))
  const stays = (at: number): boolean => at % 7 !== 3
  for (let round = 0; round < 3; round++) {
    // All written in one turn of this process, so that the service, which runs in it too, reads them in one.
    for (const [at, wire] of wires.entries()) {
      const own = { token: token(`owner ${at}`) }
      wire.write(head('GET', '/plants', own) + postBytes({ id: round, name: `${at}-${round}` }, own) + head('GET', '/plants', own) + head('HEAD', '/plants?limit=0', own))
      if (round === 2 && !stays(at)) wire.socket.resetAndDestroy()
    }
    for (const [at, wire] of wires.entries()) {
      if (round === 2 && !stays(at)) continue
      const count = 4 * (round + 1)
      const answers = await wire.answers(count, Array.from({ length: round + 1 }, (_, i) => 4 * i + 3))
      const plants = Array.from({ length: round + 1 }, (_, i) => ({ name: `${at}-${i}` }))
      const [before, created, after, none] = answers.slice(-4)
      assert.deepEqual(JSON.parse(before?.body ?? ''), plants.slice(0, -1))
      assert.deepEqual(JSON.parse(created?.body ?? ''), plants.at(-1))
      assert.deepEqual(JSON.parse(after?.body ?? ''), plants)
      assert.deepEqual([none?.status, none?.body, none?.headers.get('content-length')], [200, '', ['2']])
    }
  }
  for (const wire of wires) wire.destroy()
})

test('turn: a list whose client goes away between its decision and its sending is let go of, and the others are answered', async (t) => {
  let begun = 0
  let closed = 0
  const wires: Wire[] = []
  const { port } = await startBare(t, {
    store: {
      list: () => {
        // By now nothing of this turn is sent but its first answer.
        if (++begun === 10) for (const wire of wires.slice(5)) wire.socket.resetAndDestroy()
        return listOf([[{ name: 'a' }], [{ name: 'b' }], [{ name: 'c' }]], () => closed++)
      },
    },
  })
  for (let i = 0; i < 10; i++) wires.push(await Wire.to(port))
  for (const wire of wires) wire.write(head('GET', '/plants'))
  for (const wire of wires.slice(0, 5)) {
    const [answer] = await wire.answers(1)
    assert.equal(answer?.body, '[{"name":"a"},{"name":"b"},{"name":"c"}]')
    wire.destroy()
  }
  await until('every list is let go of', () => closed === begun)
  assert.equal(begun, 10)
})
