import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { test, type TestContext } from 'node:test'
import { type PlantList, StoreUnavailable } from '../../../dist/plants/store.js'
import type { ClientTiming } from '../../../dist/store/etcd/client.js'
import { Gateway } from '../../../dist/store/etcd/gateway.js'
import { Slots } from '../../../dist/store/etcd/slots.js'
import { EtcdStore } from '../../../dist/store/etcd/store.js'
import { plant } from '../../contract/store.contract.ts'
import { NO_TLS, PATIENT } from '../../support/etcd-store.ts'
import { serving } from '../../support/serving.ts'
import { PATIENCE_MS, until } from '../../support/time.ts'

const ALL = { after: undefined, limit: undefined } as const
const PLACES = 64
const WAITING_MAX = 4096

/** `kvs` of an answer: alice's plants from an id on, each with this name. */
function kvs(first: number, count: number, name: string): unknown[] {
  return Array.from({ length: count }, (_, i) => ({
    key: Buffer.from(`x/YWxpY2U/${(2n ** 63n + BigInt(first + i)).toString(16)}`).toString(
      'base64',
    ),
    value: Buffer.from(JSON.stringify({ name })).toString('base64'),
    create_revision: '5',
  }))
}

/** A store over a server that answers whatever is asked as the function says; undefined: never. */
async function storeOver(
  t: TestContext,
  answer: (body: string) => unknown,
  timing: ClientTiming = PATIENT,
): Promise<EtcdStore> {
  const endpoint = await serving(t, (req, res) => {
    let body = ''
    req.setEncoding('utf8').on('data', (text: string) => (body += text))
    req.on('end', () => {
      const said = answer(body)
      if (said !== undefined) res.end(JSON.stringify(said))
    })
  })
  const config = { endpoints: [endpoint], prefix: 'x/', user: undefined, tls: NO_TLS, timing }
  const store = await EtcdStore.open(config, () => {})
  t.after(() => store.close())
  return store
}

function isProbe(body: string): boolean {
  return body.includes('request_delete_range')
}

test('an owner with one call waits for one place, not for the calls of another owner', async () => {
  const slots = new Slots()
  const order: string[] = []
  const enter = async (owner: string): Promise<void> => {
    await slots.enter(owner, PATIENCE_MS)
    order.push(owner)
  }
  for (let i = 0; i < PLACES; i++) await enter('mallory')
  const waiting = [
    ...Array.from({ length: 500 }, () => enter('mallory')),
    enter('bob'),
    enter('eve'),
  ]
  for (let i = 0; i < 4; i++) {
    slots.leave()
    await nextTick()
  }
  assert.deepEqual(order.slice(PLACES), ['mallory', 'bob', 'eve', 'mallory'])
  for (let i = 0; i < 500; i++) slots.leave()
  await Promise.all(waiting)
})

test(`${WAITING_MAX} calls may wait, and none for longer than its time`, async () => {
  const slots = new Slots()
  for (let i = 0; i < PLACES; i++) await slots.enter('mallory', 1)
  const waiting = Array.from({ length: WAITING_MAX }, (_, i) => slots.enter(`owner ${i}`, 50))
  await assert.rejects(
    slots.enter('bob', PATIENCE_MS),
    (error) =>
      error instanceof StoreUnavailable && error.message === 'too many calls wait for etcd',
  )
  const late = await Promise.allSettled(waiting)
  assert.ok(late.every(({ status }) => status === 'rejected'))
  // Nobody waits any more: as many as before get a place, and no more than that.
  for (let i = 0; i < PLACES; i++) slots.leave()
  for (let i = 0; i < PLACES; i++) await slots.enter('bob', 1)
  await assert.rejects(slots.enter('bob', 1), /etcd did not answer in time/)
})

test('readiness does not wait for a place: calls that hang in number leave it green', async (t) => {
  let probes = 0
  const store = await storeOver(
    t,
    (body) => {
      if (!isProbe(body)) return undefined
      probes += 1
      return { header: { revision: '7' } }
    },
    { attempt: 4000, call: 4000, probe: 1500 },
  )
  const creates = Array.from({ length: 2 * PLACES }, (_, i) =>
    store.create('alice', plant(BigInt(i))),
  )
  const failed = Promise.allSettled(creates)
  const before = probes
  await until(
    'readiness was looked at',
    () => store.unavailableReason() !== undefined || probes >= before + 2,
  )
  assert.equal(store.unavailableReason(), undefined)
  await failed
})

test('two long answers of etcd are not read in one tick', async (t) => {
  const text = JSON.stringify({ header: { revision: '7' }, kvs: kvs(0, 2000, 'x') })
  const url = await serving(t, (_, res) => res.end(text))
  const gateway = new Gateway(false, NO_TLS)
  t.after(() => gateway.close())
  let tick = 0
  let counting = true
  const count = (): void => {
    tick += 1
    if (counting) setImmediate(count)
  }
  setImmediate(count)
  const question = { url, message: {}, token: '', timeoutMs: PATIENCE_MS, maxBytes: Infinity }
  const ticks = await Promise.all(
    Array.from({ length: 32 }, async () => {
      await gateway.ask(question)
      return tick
    }),
  )
  counting = false
  assert.equal(new Set(ticks).size, ticks.length)
})

test('a chunk of a list holds some hundred plants, also where they are tiny', async (t) => {
  const count = 5000
  const store = await storeOver(t, (body) =>
    isProbe(body)
      ? { header: { revision: '7' } }
      : { header: { revision: '7' }, kvs: kvs(0, count, ''), count: String(count) },
  )
  const list = await store.list('alice', ALL)
  let plants = 0
  for (let chunk = await list.next(); chunk; chunk = await list.next()) {
    // The store's own chunk.
    const { length } = JSON.parse(chunk.toString()) as unknown[]
    assert.ok(length <= 512, `${length} plants`)
    plants += length
  }
  assert.equal(plants, count)
})

test('a list says what it holds: less with every chunk, and nothing at its end', async (t) => {
  const perPage = 10
  const name = 'x'.repeat(100_000)
  const store = await storeOver(t, (body) => {
    if (isProbe(body)) return { header: { revision: '7' } }
    // The store's own request.
    const { key } = JSON.parse(body) as { readonly key: string }
    const first = !Buffer.from(key, 'base64').includes(0)
    const page = { header: { revision: '7' }, kvs: kvs(first ? 0 : perPage, perPage, name) }
    return { ...page, more: first, count: first ? '20' : '10' }
  })
  const held = (list: PlantList & { readonly heldBytes?: number }): number => list.heldBytes ?? -1
  const list = await store.list('alice', ALL)
  const page = perPage * 100_000
  assert.ok(held(list) > page && held(list) < 1.5 * page, `${held(list)}`)
  let before = held(list)
  for (let i = 0; i < perPage; i++) {
    await list.next()
    assert.ok(held(list) <= before - 100_000)
    before = held(list)
  }
  assert.equal(before, 0)
  await list.next()
  assert.ok(held(list) > 0.8 * page, 'the next page is here')
  while (await list.next()) assert.ok(held(list) < 1.2 * page)
  assert.equal(held(list), 0)
  const left = await store.list('alice', ALL)
  left.close()
  assert.equal(held(left), 0)
})

test('a close does not wait for the pages of lists that are being opened', async (t) => {
  let pages = 0
  const store = await storeOver(t, (body) => {
    if (isProbe(body)) return { header: { revision: '7' } }
    // Where a list is cut is looked for in pages that never end.
    const page = { header: { revision: '7' }, kvs: kvs(32 * pages++, 32, 'x') }
    return { ...page, more: true, count: '9999999999' }
  })
  const list = Promise.resolve(store.list('alice', { after: undefined, limit: 2 ** 31 - 1 }))
  const refused = assert.rejects(list, StoreUnavailable)
  await until('pages are read', () => pages > 4)
  await store.close()
  await refused
})
