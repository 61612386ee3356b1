import assert from 'node:assert/strict'
import type { Socket } from 'node:net'
import { test } from 'node:test'
import { setImmediate as yieldTick } from 'node:timers/promises'
import { atTickEnd } from '../../dist/http/tick.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import { ALICE, type Bare, type BareOptions, listOf, startBare } from '../support/bare.ts'
import { until } from '../support/time.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, postBytes, Wire } from '../support/wire.ts'

const GET = head('GET', '/plants')
const ARRIVAL_MS = 20

/** The service reads all that is sent in one tick: the event loop is blocked until it is there. */
function inOneTick(send: () => void): void {
  send()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ARRIVAL_MS)
}

/** Requests that `prime` makes. */
const PRIMING = 4

/**
 * Makes the service read two requests in one tick. All responses of the next tick then wait for its
 * end, the first one too.
 */
async function prime({ port, connections }: Bare): Promise<void> {
  const wires = [await Wire.to(port), await Wire.to(port)]
  for (const wire of wires) await wire.write(GET).answers(1)
  inOneTick(() => wires.forEach((wire) => wire.write(GET)))
  for (const wire of wires) await wire.answers(2)
  for (const wire of wires) wire.destroy()
  await until('they are gone', () => connections.sockets.length === 0)
}

/** This many clients, once the service has accepted them. */
async function accepted({ port, connections }: Bare, count: number): Promise<Wire[]> {
  const wires = await Promise.all(Array.from({ length: count }, () => Wire.to(port)))
  await until('all are accepted', () => connections.sockets.length === count)
  return wires
}

/** The owner of a request is its token, and its only plant has that name. */
const BY_TOKEN: BareOptions = {
  authenticate: (owner) => ({ ...ALICE, owner }),
  store: { list: (owner) => listOf([[{ name: owner }]]) },
}
const listOfOwner = (token: string): string => head('GET', '/plants', { token })

async function recording() {
  // A tick with one response before.
  atTickEnd(() => {})
  await yieldTick()
  const sent: number[] = []
  let next = 0
  const add = (count: number): void => {
    for (let i = 0; i < count; i++) {
      const id = next++
      atTickEnd(() => sent.push(id))
    }
  }
  return { sent, add }
}

for (const [what, added, counts] of [
  ['alone in its tick is sent at once', [1, 1, 1], [1, 2, 3]],
  ['first after a quiet tick is sent at once', [3, 0], [1, 3]],
  ['added after a busy tick waits', [2, 1, 1], [1, 2, 4]],
] as const)
  test(`tick: a response that is ${what}`, async () => {
    const { sent, add } = await recording()
    for (const [tick, count] of added.entries()) {
      add(count)
      assert.deepEqual(sent, [...Array(counts[tick]).keys()])
      await yieldTick()
    }
  })

test('tick: at most 32 responses wait, and each is sent once, in order', async () => {
  const { sent, add } = await recording()
  for (let i = 0; i < 1000; i++) {
    add(1)
    assert.ok(i + 1 - sent.length < 32, `${sent.length} of ${i + 1} sent`)
  }
  await yieldTick()
  assert.deepEqual(sent, [...Array(1000).keys()])
})

test('tick: a response added while others are sent is sent too', async () => {
  const sent: string[] = []
  const chain = (name: string, left: number): void => {
    sent.push(`${name}${left}`)
    if (left > 0) atTickEnd(() => chain(name, left - 1))
  }
  for (const name of ['a', 'b', 'c']) atTickEnd(() => chain(name, 50))
  for (let ticks = 0; ticks < 100 && sent.length < 153; ticks++) await yieldTick()
  assert.equal(sent.length, 153)
  for (const name of ['a', 'b', 'c']) {
    const own = sent.filter((each) => each.startsWith(name))
    assert.deepEqual(own, Array.from({ length: 51 }, (_, i) => `${name}${50 - i}`))
  }
})

test('tick: each of many clients gets its own responses in order', async (t) => {
  const { port } = await startBare(t, BY_TOKEN)
  const wires = await Promise.all(Array.from({ length: 60 }, () => Wire.to(port)))
  for (let round = 1; round <= 3; round++) {
    // Written in one tick of this process. The service runs in it too, and reads them in one.
    for (const [at, wire] of wires.entries()) {
      const own = { token: `owner-${at}` }
      const post = postBytes({ id: round, name: `${at} ${round}` }, own)
      wire.write(head('GET', '/plants', own) + post + head('HEAD', '/plants', own))
    }
    if (round === 3) for (const wire of wires.splice(40)) wire.socket.resetAndDestroy()
    const heads = Array.from({ length: round }, (_, i) => 3 * i + 2)
    for (const [at, wire] of wires.entries()) {
      const answers = (await wire.answers(3 * round, heads)).slice(-3)
      assert.deepEqual(answers.map(verdict), [200, 200, 200])
      const bodies = answers.map(({ body }) => body)
      assert.deepEqual(bodies, [`[{"name":"owner-${at}"}]`, `{"name":"${at} ${round}"}`, ''])
    }
  }
})

test('tick: requests that wait on their connections do not multiply its work', async (t) => {
  const bare = await startBare(t)
  const wires = await accepted(bare, 20)
  inOneTick(() => wires.forEach((wire) => wire.write(head('OPTIONS', '/plants').repeat(8))))
  let most = 0
  for (let before = 0; before < 8 * wires.length; before = bare.answered.length) {
    await yieldTick()
    most = Math.max(most, bare.answered.length - before)
  }
  assert.ok(most <= 2 * wires.length, `${most} in one tick`)
})

for (const count of [40, 6])
  test(`tick: of ${count} responses one that cannot be sent is cut off alone`, async (t) => {
    const bare = await startBare(t, BY_TOKEN)
    bare.server.prependListener('request', ({ headers }, res) => {
      if (!headers.authorization?.endsWith(' bad')) return
      res.writeHead = () => assert.fail('it cannot be sent')
    })
    await prime(bare)
    const wires = await accepted(bare, count)
    inOneTick(() =>
      wires.forEach((wire, at) => wire.write(listOfOwner(at === 5 ? 'bad' : `owner-${at}`))),
    )
    const [bad] = wires.splice(5, 1)
    assert.deepEqual(await bad?.allAnswers(), [])
    const seen = await Promise.all(wires.map(async (wire) => (await wire.answers(1))[0]?.body))
    const expected = wires.map((_, at) => `[{"name":"owner-${at < 5 ? at : at + 1}"}]`)
    assert.deepEqual(seen, expected)
    assert.equal(bare.connections.active, 0)
  })

test('tick: a list whose reader leaves before the end of the tick is not sent', async (t) => {
  const sides: Socket[] = []
  let opened = 0
  // Where the machine is busy, a piece may take so long that the next one would wait a tick.
  const queue = new FairQueue()
  queue.run = (_owner, work) => work()
  const list = () => {
    opened++
    // When the third is opened, the first two wait for the end of the tick.
    if (opened === PRIMING + 3) {
      sides[0]?.destroy()
      sides[1]?.resetAndDestroy()
    }
    return listOf([[{ name: 'a' }], [{ name: 'b' }], [{ name: 'c' }]])
  }
  const bare = await startBare(t, { queue, store: { list } })
  await prime(bare)
  bare.server.on('connection', (side: Socket) => sides.push(side))
  const wires: Wire[] = []
  for (let at = 0; at < 4; at++) {
    wires.push(await Wire.to(bare.port))
    await until('it is accepted', () => sides.length === at + 1)
  }
  inOneTick(() => wires.forEach((wire) => wire.write(GET)))
  for (const wire of wires.slice(2))
    assert.equal((await wire.answers(1))[0]?.body, '[{"name":"a"},{"name":"b"},{"name":"c"}]')
  for (const wire of wires.slice(0, 2)) {
    await wire.end()
    assert.equal(wire.text, '')
  }
  await until('all four are logged', () => bare.answered.length >= PRIMING + 4)
  assert.equal(opened, PRIMING + 4)
  const aborted = bare.answered.filter((line) => line === 'GET 200 aborted')
  assert.deepEqual([bare.answered.length, aborted.length], [PRIMING + 4, 2])
  assert.equal(bare.connections.active, 0)
})

test('tick: a stop that begins before the end of the tick answers, then closes', async (t) => {
  let isDraining = false
  let drained: Promise<unknown> = Promise.resolve()
  const bare = await startBare(t, {
    ...BY_TOKEN,
    isDraining: () => isDraining,
    store: {
      list(owner) {
        if (owner === 'stop') {
          isDraining = true
          // Nothing comes in between their looks: the second closes what is idle.
          drained = Promise.all([bare.connections.drain(10_000), bare.connections.drain(10_000)])
        }
        return listOf([[{ name: owner }]])
      },
    },
  })
  await prime(bare)
  const wires = await accepted(bare, 3)
  const owners = ['first', 'second', 'stop']
  inOneTick(() =>
    wires.forEach((wire, at) => wire.write(listOfOwner(owners[at] ?? '')).halfClose()),
  )
  const answers = (await Promise.all(wires.map((wire) => wire.allAnswers()))).flat()
  assert.deepEqual(
    answers.map((answer) => [verdict(answer), answer.body, headerLines(answer, 'connection')]),
    owners.map((name) => [200, `[{"name":"${name}"}]`, ['close']]),
  )
  await drained
  assert.equal(bare.connections.sockets.length, 0)
})
