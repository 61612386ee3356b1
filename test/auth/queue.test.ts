import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { type TestContext, test } from 'node:test'
import type { KeyConfig } from '../../dist/auth/keys.js'
import {
  type Client,
  MAX_WAITING,
  MAX_WAITING_FOR_KEYS,
  VerificationQueue,
} from '../../dist/auth/verification-queue.js'
import { ClientGone, conditions, HttpError } from '../../dist/errors.js'
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
  refused,
  rsa,
  SECRET,
  signed,
  STAYS,
  verifier,
} from './tokens.ts'

const now = Math.floor(Date.now() / 1000)
const CURRENT: Members = { iat: now, exp: now + 600 }

/** Signed by the key of the set; each subject has another token. */
function es512(sub: string): string {
  return signed('ES512', p521.privateKey, { kid: 'one' }, claims({ ...CURRENT, sub }))
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
  /** The largest number at once so far. */
  readonly most: number
  /** The oldest continues. */
  release(): void
  /** All continue, later ones too. */
  open(): void
}

/** From now on every verification waits until it is released. */
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
  return signed('ES256', p256.privateKey, { kid: 'one' }, claims({ ...CURRENT, sub }))
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
  test(`verification queue: ${what} verifies ${atOnce} signatures at once`, async (t) => {
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

test('verification queue: after 512 waiting tokens 503, cached tokens are served', async (t) => {
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
    const message = conditions.get('overloaded')?.[1]
    assert.equal(answer.status, 503)
    assert.deepEqual(JSON.parse(answer.body), { error: 50303, message })
    assert.deepEqual(headerLines(answer, 'retry-after'), ['1'])
    assert.deepEqual(headerLines(answer, 'www-authenticate'), [])
  }
  assert.equal((await call(port, { token: owner })).status, 200)
  assert.equal(held.begun, 1)
  // A token that was not verified does not count as refused.
  assert.equal(await metric(adminPort, REFUSED), 0)

  // Reset, because a client that only ends its side may still wait for its response.
  for (const wire of wires) wire.socket.resetAndDestroy()
  const open = (): Promise<number> => metric(adminPort, 'plant_store_connections')
  await until('they have left', async () => (await open()) === 0)
  held.open()
  await until('the first is refused', async () => (await metric(adminPort, REFUSED)) === 1)
  assert.equal((await call(port, { token: es512('next') })).status, 200)
  // Of all the clients that left, only the first was verified.
  assert.equal(held.begun, 2)
  assert.equal(await metric(adminPort, REFUSED), 1)
  assert.equal(await metric(adminPort, 'plant_store_errors_total{error="50303"}'), 3)
})

test('verification queue: skips a client that left, and verifies the others', async (t) => {
  const held = holdVerifications(t)
  const { port, adminPort } = await startSlow(t)
  const wires: Wire[] = []
  for (const sub of ['running', 'leaves', 'stays']) {
    wires.push(await ask(port, es512(sub)))
    await underWay(adminPort, wires.length)
  }
  wires[1]?.socket.resetAndDestroy()
  const open = (): Promise<number> => metric(adminPort, 'plant_store_connections')
  await until('it has left', async () => (await open()) === 2)
  held.open()
  for (const at of [0, 2]) assert.equal(await statusOf(wires[at] ?? assert.fail()), 200)
  assert.equal(held.begun, 2)
})

test('verification queue: verifies a token of several requests once', async (t) => {
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

test('verification queue: reads a few of many malformed tokens in each tick', async () => {
  for (const [by, atOnce] of [
    [verifier(fileKeys(SLOW_KEY)), 1],
    [verifier(), 32],
  ] as const) {
    let done = 0
    const all = Array.from({ length: 100 }, async () => {
      await refused('a.b.c', 'tokenInvalid', by)
      done++
    })
    for (let before = 0; done < all.length; before = done) {
      await nextTick()
      assert(done - before <= atOnce, `${done - before} in one tick`)
    }
    await Promise.all(all)
  }
})

function isOverloaded(error: unknown): boolean {
  return error instanceof HttpError && error.condition === 'overloaded'
}

/** A queue whose work runs until `end` ends the oldest. */
function queueOf(keys: { atOnce: number }) {
  const queue = new VerificationQueue(() => keys.atOnce)
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

test('verification queue: starts in the order of the requests', async () => {
  const { begun, add, end } = queueOf({ atOnce: 2 })
  const all = ['a', 'b', 'c', 'd', 'e'].map((name) => add(name))
  await nextTick()
  assert.deepEqual(begun, ['a', 'b'])
  for (const _ of all) await end()
  await Promise.all(all)
  assert.deepEqual(begun, ['a', 'b', 'c', 'd', 'e'])
})

test('verification queue: a new key set changes the slots, not the order', async () => {
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

/** A fetch of keys that ends when `arrive` is called. */
function fetching() {
  let arrive = (): void => {}
  const pending = new Promise<void>((resolve) => (arrive = resolve))
  return { fetchKeys: () => pending, arrive }
}

test('verification queue: a token waits for its keys without a slot', async () => {
  const { queue, begun, add, end } = queueOf({ atOnce: 1 })
  const { fetchKeys, arrive } = fetching()
  const client = { isChunked: false, isOver: false }
  const work = async (name: string) => void begun.push(name)
  const stays = queue.run(STAYS, () => work('stays'), fetchKeys)
  const leaves = queue.run(client, () => work('leaves'), fetchKeys)
  const other = add('other')
  await nextTick()
  assert.deepEqual(begun, ['other'])
  client.isOver = true
  const left = assert.rejects(leaves, ClientGone)
  arrive()
  await nextTick()
  assert.deepEqual(begun, ['other'])
  await end()
  await Promise.all([stays, other, left])
  assert.deepEqual(begun, ['other', 'stays'])
  // If a slot had been freed twice, two would run now.
  await nextTick()
  const more = ['x', 'y'].map((name) => add(name))
  await nextTick()
  assert.deepEqual(begun, ['other', 'stays', 'x'])
  await end()
  await end()
  await Promise.all(more)
})

test('verification queue: a token that waits for keys counts all the time', async () => {
  const { queue, begun, add, end } = queueOf({ atOnce: 1 })
  const { fetchKeys, arrive } = fetching()
  const running = add('running')
  const waiting = queue.run(STAYS, async () => {}, fetchKeys)
  const all = Array.from({ length: MAX_WAITING - 1 }, (_, i) => add(String(i)))
  await assert.rejects(add('one too many'), isOverloaded)
  await assert.rejects(queue.run(STAYS, async () => {}, fetchKeys), isOverloaded)
  arrive()
  await nextTick()
  assert.deepEqual(begun, ['running'])
  for (const _ of [running, ...all]) await end()
  await Promise.all([running, ...all, waiting])
})

test('verification queue: half of the places are for tokens whose key is known', async () => {
  const { queue, begun, add, end } = queueOf({ atOnce: 1 })
  const { fetchKeys, arrive } = fetching()
  const fetch = (): Promise<void> => queue.run(STAYS, async () => {}, fetchKeys)
  const waiting = Array.from({ length: MAX_WAITING_FOR_KEYS }, fetch)
  await Promise.all(Array.from({ length: 3 }, () => assert.rejects(fetch(), isOverloaded)))
  const known = add('known')
  await nextTick()
  assert.deepEqual(begun, ['known'])
  await end()
  arrive()
  await Promise.all([known, ...waiting])
})

test('verification queue: a token whose keys have come makes room for another', async () => {
  const { queue } = queueOf({ atOnce: 1 })
  const work = () => Promise.resolve()
  for (let i = 0; i <= MAX_WAITING; i++) await queue.run(STAYS, work, () => Promise.resolve())
})

test('verification queue: a chunked body takes 8 of 512 places, or of 256 for keys', async () => {
  const chunked: Client = { isChunked: true, isOver: false }
  for (const [keys, places] of [
    [undefined, 512],
    [fetching().fetchKeys, 256],
  ] as const) {
    const { queue } = queueOf({ atOnce: keys ? 16 : 0 })
    const work = () => Promise.resolve()
    const add = (client: Client) => queue.run(client, work, keys)
    for (let taken = 0; taken < places; taken += 8) void add(chunked)
    await assert.rejects(add(chunked), isOverloaded)
    await assert.rejects(add(STAYS), isOverloaded)
    const other = queueOf({ atOnce: keys ? 16 : 0 }).queue
    for (let taken = 0; taken < places; taken++) void other.run(STAYS, work, keys)
    await assert.rejects(other.run(STAYS, work, keys), isOverloaded)
  }
})
