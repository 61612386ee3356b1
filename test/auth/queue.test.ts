import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { type TestContext, test } from 'node:test'
import type { KeyConfig } from '../../dist/auth/keys.js'
import { type Client, MAX_WAITING, VerificationQueue } from '../../dist/auth/verification-queue.js'
import { ClientGone, HttpError } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { scrape, underWay } from '../support/metrics.ts'
import { type RunningService, startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { headerLines } from '../support/verdict.ts'
import { firstAnswer, head, Wire } from '../support/wire.ts'
import {
  AUDIENCE,
  claims,
  fileKeys,
  hs256,
  ISSUER,
  jwk,
  keyFile,
  type Members,
  p256,
  p521,
  refusedAs,
  rsa,
  SECRET,
  STAYS,
  token,
  verifier,
} from './tokens.ts'

const now = Math.floor(Date.now() / 1000)
const CURRENT: Members = { iat: now, exp: now + 600 }

/** A different token each, signed by the key of the set. */
function es512(sub: string): string {
  return token({ alg: 'ES512', kid: 'one' }, claims({ ...CURRENT, sub }), p521.privateKey, 'ES512')
}

/** A service that verifies one signature at a time. */
function startSlow(t: TestContext): Promise<RunningService> {
  const keys = { kind: 'file', path: SLOW_SET } as const
  return startService(t, { issuer: ISSUER, audience: AUDIENCE, keys })
}

const SLOW_KEY = jwk(p521.publicKey, { kid: 'one' })

interface Held {
  /** How many verifications have begun. */
  readonly begun: number
  readonly running: number
  /** The longest number at once so far. */
  readonly most: number
  /** Lets the oldest go on. */
  release(): void
  /** Lets all go on, also those that come. */
  open(): void
}

/** From now on, every verification waits until it is told to go on. */
function holdVerifications(t: TestContext): Held {
  const { subtle } = globalThis.crypto
  const verify = subtle.verify.bind(subtle)
  const waiting: (() => void)[] = []
  let [begun, running, most, isOpen] = [0, 0, 0, false]
  t.mock.method(subtle, 'verify', async (...args: Parameters<typeof verify>) => {
    begun++
    most = Math.max(most, ++running)
    if (!isOpen) await new Promise<void>((resolve) => waiting.push(resolve))
    running--
    return verify(...args)
  })
  const held = {
    get begun() {
      return begun
    },
    get running() {
      return running
    },
    get most() {
      return most
    },
    release: () => waiting.shift()?.(),
    open() {
      isOpen = true
      while (waiting.length > 0) held.release()
    },
  }
  t.after(() => held.open())
  return held
}

async function ask(port: number, bearer: string): Promise<Wire> {
  const wire = await Wire.to(port)
  return wire.write(head('GET', '/plants', { token: bearer }))
}

async function statusOf(wire: Wire): Promise<number | undefined> {
  const [answer] = await wire.answers(1)
  wire.destroy()
  return answer?.status
}

const REFUSED = 'plant_store_tokens_verified_total{result="refused"}'

async function metric(adminPort: number, sample: string): Promise<number> {
  return (await scrape(adminPort)).value(sample)
}

const SLOW_SET = keyFile(SLOW_KEY)
const MIXED_SET = keyFile(jwk(p256.publicKey, { kid: 'two' }), SLOW_KEY)
const FAST_SET = keyFile(jwk(p256.publicKey, { kid: 'one' }), jwk(rsa.publicKey, { kid: 'two' }))

function es256(sub: string): string {
  const header = { alg: 'ES256', kid: 'one' }
  return token(header, claims({ ...CURRENT, sub }), p256.privateKey, 'ES256')
}

function ofSecret(sub: string): string {
  return hs256(claims({ ...CURRENT, sub }))
}

const AT_ONCE: readonly (readonly [number, string, KeyConfig, (sub: string) => string])[] = [
  [1, 'an ES512 key', { kind: 'file', path: SLOW_SET }, es512],
  [1, 'an ES512 key among others', { kind: 'file', path: MIXED_SET }, es512],
  [16, 'fast keys', { kind: 'file', path: FAST_SET }, es256],
  [32, 'a secret', { kind: 'secret', secret: SECRET }, ofSecret],
]

for (const [atOnce, what, keys, sign] of AT_ONCE) {
  test(`strangers: with ${what}, signatures are verified ${atOnce} at a time`, async (t) => {
    const held = holdVerifications(t)
    const { port, adminPort } = await startService(t, { issuer: ISSUER, audience: AUDIENCE, keys })
    const wires: Wire[] = []
    for (let i = 0; i < atOnce + 3; i++) wires.push(await ask(port, sign(`${i}`)))
    await underWay(adminPort, wires.length)
    await until('they are verified', () => held.running >= atOnce)
    assert.equal(held.running, atOnce)
    held.open()
    assert.deepEqual(
      await Promise.all(wires.map(statusOf)),
      wires.map(() => 200),
    )
    assert.equal(held.most, atOnce)
  })
}

test('strangers: beyond 512 that wait it is 503, and a cached token is served', async (t) => {
  const { port, adminPort } = await startSlow(t)
  const owner = es512('owner')
  assert.equal((await call(port, { token: owner })).status, 200)
  const held = holdVerifications(t)
  const bad = es512('stranger').slice(0, -8)
  const wires: Wire[] = []
  for (let i = 0; i < 1 + MAX_WAITING; i++) {
    wires.push(await ask(port, `${bad}${String(i).padStart(7, '0')}A`))
  }
  await underWay(adminPort, wires.length)
  for (let i = 0; i < 3; i++) {
    const answer = await firstAnswer(port, head('GET', '/plants', { token: es512('late') }))
    const message = 'Too much is waiting already: try again later.'
    assert.equal(answer.status, 503)
    assert.deepEqual(JSON.parse(answer.body), { error: 50303, message })
    assert.deepEqual(headerLines(answer, 'retry-after'), ['1'])
    assert.deepEqual(headerLines(answer, 'www-authenticate'), [])
  }
  assert.equal((await call(port, { token: owner })).status, 200)
  assert.equal(held.begun, 1)
  // None of those that were not verified counts as refused.
  assert.equal(await metric(adminPort, REFUSED), 0)

  // A client that closes its side alone may still wait for its answer.
  for (const wire of wires) wire.socket.resetAndDestroy()
  const open = (): Promise<number> => metric(adminPort, 'plant_store_connections')
  await until('they are gone', async () => (await open()) === 0)
  held.open()
  await until('the first is refused', async () => (await metric(adminPort, REFUSED)) === 1)
  assert.equal((await call(port, { token: es512('next') })).status, 200)
  // Of all who left, the first alone was verified.
  assert.equal(held.begun, 2)
  assert.equal(await metric(adminPort, REFUSED), 1)
  assert.equal(await metric(adminPort, 'plant_store_errors_total{error="50303"}'), 3)
})

test('strangers: one who leaves while it waits is not verified, the others are', async (t) => {
  const held = holdVerifications(t)
  const { port, adminPort } = await startSlow(t)
  const wires: Wire[] = []
  for (const sub of ['running', 'leaves', 'stays']) {
    wires.push(await ask(port, es512(sub)))
    await underWay(adminPort, wires.length)
  }
  wires[1]?.socket.resetAndDestroy()
  const open = (): Promise<number> => metric(adminPort, 'plant_store_connections')
  await until('it is gone', async () => (await open()) === 2)
  held.open()
  for (const at of [0, 2]) assert.equal(await statusOf(wires[at] ?? assert.fail()), 200)
  assert.equal(held.begun, 2)
})

test('the same token of several requests at once is verified once', async (t) => {
  const held = holdVerifications(t)
  const { port, adminPort } = await startSlow(t)
  const bearer = es512('alice')
  const wires: Wire[] = []
  for (let i = 0; i < 5; i++) wires.push(await ask(port, bearer))
  await underWay(adminPort, wires.length)
  held.open()
  assert.deepEqual(
    await Promise.all(wires.map(statusOf)),
    wires.map(() => 200),
  )
  assert.equal(held.begun, 1)
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_tokens_verified_total{result="accepted"}'), 1)
  assert.equal(value('plant_store_tokens_remembered_total'), 4)
})

test('many malformed tokens at once are read a few in each tick', async () => {
  for (const [by, atOnce] of [
    [verifier(fileKeys(SLOW_KEY)), 1],
    [verifier(), 32],
  ] as const) {
    let refused = 0
    const all = Array.from({ length: 100 }, async () => {
      await assert.rejects(async () => by.verify('a.b.c'), refusedAs('tokenInvalid'))
      refused++
    })
    for (let before = 0; refused < all.length; before = refused) {
      await nextTick()
      assert(refused - before <= atOnce, `${refused - before} in one tick`)
    }
    await Promise.all(all)
  }
})

/** A queue whose work waits until it is told to end. */
function queueOf(keys: { atOnce: number }) {
  const queue = new VerificationQueue(keys)
  const running: [name: string, end: () => void][] = []
  const begun: string[] = []
  const add = (name: string, client: Client = STAYS): Promise<void> =>
    queue.run(client, () => {
      begun.push(name)
      return new Promise((resolve) => running.push([name, resolve]))
    })
  const end = async (): Promise<void> => {
    running.shift()?.[1]()
    await nextTick()
    await nextTick()
  }
  return { queue, begun, add, end }
}

test('verifications begin in the order of their requests', async () => {
  const { begun, add, end } = queueOf({ atOnce: 2 })
  const all = ['a', 'b', 'c', 'd', 'e'].map((name) => add(name))
  await nextTick()
  assert.deepEqual(begun, ['a', 'b'])
  for (const _ of all) await end()
  await Promise.all(all)
  assert.deepEqual(begun, ['a', 'b', 'c', 'd', 'e'])
})

test('a new key set changes how many are verified at once, and nobody overtakes', async () => {
  const keys = { atOnce: 1 }
  const { begun, add, end } = queueOf(keys)
  const all = ['a', 'b', 'c', 'd'].map((name) => add(name))
  keys.atOnce = 2
  all.push(add('e'))
  await nextTick()
  assert.deepEqual(begun, ['a'])
  await end()
  assert.deepEqual(begun, ['a', 'b', 'c'])
  keys.atOnce = 1
  await end()
  assert.deepEqual(begun, ['a', 'b', 'c'])
  for (const _ of all) await end()
  await Promise.all(all)
  assert.deepEqual(begun, ['a', 'b', 'c', 'd', 'e'])
})

test('a turn that waits for something else is free, and is taken again after it', async () => {
  const { queue, begun, add, end } = queueOf({ atOnce: 1 })
  let arrive = (): void => {}
  const pending = new Promise<void>((resolve) => (arrive = resolve))
  const steps: string[] = []
  const client = { destroyed: false }
  const fetching = [STAYS, client].map((each, i) =>
    queue.run(each, async (wait) => {
      await wait(pending)
      steps.push(`${i} goes on`)
    }),
  )
  const other = add('other')
  await nextTick()
  await nextTick()
  await nextTick()
  assert.deepEqual(begun, ['other'])
  client.destroyed = true
  const left = assert.rejects(fetching[1] ?? assert.fail(), ClientGone)
  arrive()
  await nextTick()
  assert.deepEqual(steps, [])
  await end()
  await Promise.all([fetching[0], other, left])
  assert.deepEqual(steps, ['0 goes on'])
  // Each turn was freed once: two at a time would mean that one was freed twice.
  const more = ['x', 'y'].map((name) => add(name))
  await nextTick()
  assert.deepEqual(begun, ['other', 'x'])
  await end()
  await end()
  await Promise.all(more)
})

test('one who comes back from a fetch to a full queue is refused, and frees nothing', async () => {
  const { queue, begun, add, end } = queueOf({ atOnce: 1 })
  let arrive = (): void => {}
  const pending = new Promise<void>((resolve) => (arrive = resolve))
  const fetching = queue.run(STAYS, (wait) => wait(pending))
  await nextTick()
  await nextTick()
  const all = Array.from({ length: 1 + MAX_WAITING }, (_, i) => add(String(i)))
  arrive()
  await assert.rejects(fetching, (error) => {
    return error instanceof HttpError && error.condition === 'overloaded'
  })
  await nextTick()
  assert.deepEqual(begun, ['0'])
  for (const _ of all) await end()
  await Promise.all(all)
})
