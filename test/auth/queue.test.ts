import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { type TestContext, test } from 'node:test'
import type { KeyConfig } from '../../dist/auth/keys.js'
import { TokenCache } from '../../dist/auth/token-cache.js'
import { conditions, HttpError } from '../../dist/errors.js'
import { call } from '../support/http.ts'
import { scrape, underWay } from '../support/metrics.ts'
import { type RunningService, startService } from '../support/service.ts'
import { until } from '../support/time.ts'
import { headerLines } from '../support/verdict.ts'
import { firstAnswer, head, Wire } from '../support/wire.ts'
import {
  AUDIENCE,
  accepted,
  claims,
  hs256,
  ISSUER,
  jwk,
  keyFile,
  type Members,
  p521,
  refused,
  SECRET,
  STAYS,
  secretKeys,
  signed,
  verifier,
} from './tokens.ts'

const now = Math.floor(Date.now() / 1000)
const CURRENT: Members = { iat: now, exp: now + 600 }

/** Signed by the key of the set; each subject has another token. */
function es512(sub: string): string {
  return signed('ES512', p521.privateKey, { kid: 'one' }, claims({ ...CURRENT, sub }))
}

function startSlow(t: TestContext): Promise<RunningService> {
  const keys = { kind: 'file', path: SLOW_SET } as const
  return startService(t, { issuer: ISSUER, audience: AUDIENCE, keys })
}

const SLOW_SET = keyFile(jwk(p521.publicKey, { kid: 'one' }))

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

/** How many are verified at once, and how many more may wait. */
const [AT_ONCE, WAITING] = [16, 512]

function ofSecret(sub: string): string {
  return hs256(claims({ ...CURRENT, sub }))
}

const KEYS: readonly (readonly [string, KeyConfig, (sub: string) => string])[] = [
  ['a slow key', { kind: 'file', path: SLOW_SET }, es512],
  ['a secret', { kind: 'secret', secret: SECRET }, ofSecret],
]

for (const [what, keys, sign] of KEYS) {
  test(`tokens in turn: ${AT_ONCE} signatures are verified at once with ${what}`, async (t) => {
    const held = holdVerifications(t)
    const { port, adminPort } = await startService(t, { issuer: ISSUER, audience: AUDIENCE, keys })
    const wires: Wire[] = []
    for (let i = 0; i < AT_ONCE + 3; i++) wires.push(await ask(port, sign(`${i}`)))
    await underWay(adminPort, wires.length)
    await until('they are verified', () => held.running >= AT_ONCE)
    assert.equal(held.running, AT_ONCE)
    held.open()
    assert.deepEqual(
      await Promise.all(wires.map(statusOf)),
      wires.map(() => 200),
    )
    assert.equal(held.most, AT_ONCE)
  })
}

test('tokens in turn: after 512 waiting tokens 503, and cached tokens are served', async (t) => {
  const { port, adminPort } = await startSlow(t)
  const owner = es512('owner')
  assert.equal((await call(port, { token: owner })).status, 200)
  const held = holdVerifications(t)
  const bad = es512('stranger').slice(0, -8)
  const wires: Wire[] = []
  for (let i = 0; i < AT_ONCE + WAITING; i++) {
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
  assert.equal(held.begun, AT_ONCE)
  // A token that was not verified does not count as refused.
  assert.equal(await metric(adminPort, REFUSED), 0)

  // Reset, because a client that only ends its side may still wait for its response.
  for (const wire of wires) wire.socket.resetAndDestroy()
  const open = (): Promise<number> => metric(adminPort, 'plant_store_connections')
  await until('they have left', async () => (await open()) === 0)
  held.open()
  await until('those that ran are refused', async () => {
    return (await metric(adminPort, REFUSED)) === AT_ONCE
  })
  assert.equal((await call(port, { token: es512('next') })).status, 200)
  // Of the clients that left while they waited, none was verified.
  assert.equal(held.begun, AT_ONCE + 1)
  assert.equal(await metric(adminPort, REFUSED), AT_ONCE)
  assert.equal(await metric(adminPort, 'plant_store_errors_total{error="50303"}'), 3)
})

test('tokens in turn: a client that left is skipped, and the others are verified', async (t) => {
  const held = holdVerifications(t)
  const { port, adminPort } = await startSlow(t)
  const wires: Wire[] = []
  const running = Array.from({ length: AT_ONCE }, (_, at) => `running ${at}`)
  for (const sub of [...running, 'leaves', 'stays']) {
    wires.push(await ask(port, es512(sub)))
    await underWay(adminPort, wires.length)
  }
  const [leaving] = wires.splice(AT_ONCE, 1)
  leaving?.socket.resetAndDestroy()
  const open = (): Promise<number> => metric(adminPort, 'plant_store_connections')
  await until('it has left', async () => (await open()) === wires.length)
  held.open()
  for (const wire of wires) assert.equal(await statusOf(wire), 200)
  assert.equal(held.begun, AT_ONCE + 1)
})

test('tokens in turn: a token that others verified meanwhile is not verified again', async (t) => {
  const held = holdVerifications(t)
  const { port, adminPort } = await startSlow(t)
  const bearer = es512('alice')
  const wires: Wire[] = []
  for (let i = 0; i < AT_ONCE + 4; i++) wires.push(await ask(port, bearer))
  await underWay(adminPort, wires.length)
  held.open()
  assert.deepEqual(
    await Promise.all(wires.map(statusOf)),
    wires.map(() => 200),
  )
  assert.equal(held.begun, AT_ONCE)
  const { value } = await scrape(adminPort)
  assert.equal(value('plant_store_tokens_verified_total{result="accepted"}'), AT_ONCE)
  assert.equal(value('plant_store_tokens_remembered_total'), 4)
})

test('tokens in turn: a few of many malformed tokens are read in each tick', async () => {
  const by = verifier()
  let done = 0
  const all = Array.from({ length: 100 }, async () => {
    await refused('a.b.c', 'tokenInvalid', by)
    done++
  })
  for (let before = 0; done < all.length; before = done) {
    await nextTick()
    assert(done - before <= AT_ONCE, `${done - before} in one tick`)
  }
  await Promise.all(all)
})

test('tokens in turn: a chunked body takes 8 of 512 places, or of 256 for keys', async () => {
  const never = (): Promise<never> => new Promise(() => {})
  const keys = { algorithms: ['HS256'], verified: new TokenCache(), find: never }
  const chunked = { isChunked: true, isOver: false }
  for (const [by, running, places] of [
    [verifier({ keys }), AT_ONCE, WAITING],
    [verifier({ keys, fetchFor: never }), 0, WAITING / 2],
  ] as const) {
    for (let at = 0; at < running + places / 8 - 1; at++) void by.verify(hs256(), chunked)
    for (let at = 0; at < 8; at++) void by.verify(hs256())
    for (const client of [chunked, STAYS])
      await assert.rejects(async () => by.verify(hs256(), client), isOverloaded)
  }
})

function isOverloaded(error: unknown): boolean {
  return error instanceof HttpError && error.condition === 'overloaded'
}

test('tokens in turn: 256 tokens wait for keys, and known keys verify meanwhile', async () => {
  const { keys } = secretKeys()
  let arrive = (): void => {}
  const fetched = new Promise<void>((resolve) => (arrive = resolve))
  // Of a token without a kid, the key is known.
  const by = verifier({ keys, fetchFor: (kid) => (kid === undefined ? undefined : fetched) })
  const unknown = (): Promise<void> => accepted(hs256(claims(), { kid: 'unknown' }), by)
  const waiting = Array.from({ length: 256 }, unknown)
  for (let i = 0; i < 3; i++) await assert.rejects(unknown(), isOverloaded)
  await accepted(hs256(), by)
  arrive()
  await Promise.all(waiting)
  // The places are free again. A token that was verified would not need one.
  const other = hs256(claims({ jti: 'other' }), { kid: 'unknown' })
  await accepted(other, by)
})
