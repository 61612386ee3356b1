import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { test, type TestContext } from 'node:test'
import { StoreUnavailable } from '../../../dist/plants/store.js'
import type { ClientTiming } from '../../../dist/store/etcd/client.js'
import { Channels } from '../../../dist/store/etcd/grpc.js'
import { binary, Message } from '../../../dist/store/etcd/protobuf.js'
import { Slots } from '../../../dist/store/etcd/slots.js'
import type { EtcdStore } from '../../../dist/store/etcd/store.js'
import { plant } from '../../contract/store.contract.ts'
import { ALL, configOf, NO_TLS, openStore, PATIENT } from '../../support/etcd-store.ts'
import { type Field, readAnswer, servingGrpc, written } from '../../support/serving-grpc.ts'
import { PATIENCE_MS, until } from '../../support/time.ts'

const SLOTS = 64
const WAITING_MAX = 4096
const HEADER: Field = [1, [[3, 7]]]
const MORE: Field = [3, 1]

/** The entries of an answer: alice's plants from an id on, each with this name. */
function entries(first: number, count: number, name: string): readonly Field[] {
  return Array.from({ length: count }, (_, i): Field => {
    const key = `plants/YWxpY2U/${(2n ** 63n + BigInt(first + i)).toString(16)}`
    return [
      2,
      [
        [1, key],
        [2, 5],
        [5, binary(JSON.stringify({ name }))],
      ],
    ]
  })
}

/**
 * A store over a server that answers lists and creates as the function says (undefined: never), and
 * every readiness probe.
 */
async function storeOver(
  t: TestContext,
  answer: (message: Message) => readonly Field[] | undefined,
  timing: ClientTiming = PATIENT,
  onProbe = (): void => {},
): Promise<EtcdStore> {
  const endpoint = await servingGrpc(t, ({ target, message: bytes }) => {
    const message = new Message(bytes)
    // Only a probe compares the prefix itself.
    const isTxn = target.includes('/Txn ')
    const isProbe = isTxn && message.messages(1)[0]?.text(3) === 'plants/'
    if (isProbe) onProbe()
    // A first page is asked for in a transaction that only reads.
    const operations = isTxn ? message.messages(2) : []
    const reads = operations.flatMap((operation) => operation.messages(1))
    if (reads.length > 0) return readAnswer(...reads.map((read) => answer(read) ?? []))
    const fields = isProbe ? [] : answer(message)
    return fields ? [HEADER, ...fields] : 'hang'
  })
  return openStore(t, { ...configOf([endpoint]), timing })
}

test('an owner with one call waits for one slot, not for the calls of others', async () => {
  const slots = new Slots()
  const order: string[] = []
  const enter = async (owner: string): Promise<void> => {
    await slots.enter(owner, PATIENCE_MS)
    order.push(owner)
  }
  for (let i = 0; i < SLOTS; i++) await enter('mallory')
  const crowd = Array.from({ length: 500 }, () => enter('mallory'))
  const waiting = [...crowd, enter('bob'), enter('eve')]
  for (let i = 0; i < 4; i++) {
    slots.leave()
    await nextTick()
  }
  assert.deepEqual(order.slice(SLOTS), ['mallory', 'bob', 'eve', 'mallory'])
  for (let i = 0; i < 500; i++) slots.leave()
  await Promise.all(waiting)
})

test(`${WAITING_MAX} calls may wait, and none for longer than its time`, async () => {
  const slots = new Slots()
  for (let i = 0; i < SLOTS; i++) await slots.enter('mallory', 1)
  const waiting = Array.from({ length: WAITING_MAX }, (_, i) => slots.enter(`owner ${i}`, 50))
  await assert.rejects(
    slots.enter('bob', PATIENCE_MS),
    (error) =>
      error instanceof StoreUnavailable && error.message === 'too many calls wait for etcd',
  )
  const late = await Promise.allSettled(waiting)
  assert.ok(late.every(({ status }) => status === 'rejected'))
  // No call waits any more: as many as before get a slot, and one more does not.
  for (let i = 0; i < SLOTS; i++) slots.leave()
  for (let i = 0; i < SLOTS; i++) await slots.enter('bob', 1)
  await assert.rejects(slots.enter('bob', 1), /etcd did not answer in time/)
})

test("one owner's waiting calls leave room for those of others", async () => {
  const slots = new Slots()
  for (let i = 0; i < SLOTS; i++) await slots.enter('mallory', 1)
  const crowd = Array.from({ length: WAITING_MAX }, () => slots.enter('mallory', 50))
  const others = Array.from({ length: 100 }, (_, i) => slots.enter(`owner ${i}`, PATIENCE_MS))
  const late = (await Promise.allSettled(crowd)).map((each) => 'reason' in each && each.reason)
  const refused = late.filter((reason) => /too many calls wait for etcd$/.test(String(reason)))
  assert.equal(refused.length, WAITING_MAX / 2)
  for (let i = 0; i < SLOTS + others.length; i++) slots.leave()
  await Promise.all(others)
})

test('readiness waits for no slot: a crowd of calls that hang leaves it green', async (t) => {
  let probes = 0
  const timing = { attempt: 4000, call: 4000, probe: 1500 }
  const store = await storeOver(
    t,
    () => undefined,
    timing,
    () => (probes += 1),
  )
  const ids = Array.from({ length: 2 * SLOTS }, (_, i) => BigInt(i))
  const failed = Promise.allSettled(ids.map((id) => store.create('alice', plant(id))))
  const before = probes
  const probed = () => store.unavailableReason() !== undefined || probes >= before + 2
  await until('readiness was probed', probed)
  assert.equal(store.unavailableReason(), undefined)
  await failed
})

test('two long answers of etcd are not read in one tick', async (t) => {
  const long = written([HEADER, ...entries(0, 2000, 'x')])
  const endpoint = await servingGrpc(t, () => long)
  const channels = new Channels(NO_TLS)
  t.after(() => channels.close())
  let tick = 0
  let isCounting = true
  const count = (): void => {
    tick += 1
    if (isCounting) setImmediate(count)
  }
  setImmediate(count)
  const limits = { timeoutMs: PATIENCE_MS, maxBytes: Infinity }
  const attempt = { path: '/x', message: Buffer.of(), token: '', ...limits }
  const answers = Array.from({ length: 32 }, () => channels.ask(endpoint, attempt).then(() => tick))
  const ticks = await Promise.all(answers)
  isCounting = false
  assert.equal(new Set(ticks).size, ticks.length)
})

test('a chunk of a list holds some hundred plants, even tiny ones', async (t) => {
  const count = 5000
  const store = await storeOver(t, () => [...entries(0, count, ''), [4, count]])
  const list = store.list('alice', ALL)
  let plants = 0
  for (let step = await list.next(); !step.done; step = await list.next()) {
    const { count } = step.value
    assert.ok(count <= 512, `${count} plants`)
    plants += count
  }
  assert.equal(plants, count)
})

test('a close does not wait for the pages of lists that are being opened', async (t) => {
  let pages = 0
  // The search for the end of the list reads pages without end.
  const store = await storeOver(t, () => [...entries(32 * pages++, 32, 'x'), MORE, [4, 2 ** 33]])
  const list = store.list('alice', { after: undefined, limit: 2 ** 31 - 1 }).next()
  const refused = assert.rejects(async () => list, StoreUnavailable)
  await until('pages are read', () => pages > 4)
  await store.close()
  await refused
})
