import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDeepStrictEqual } from 'node:util'
import { ResponseTooLong, EtcdRefusal } from '../../../dist/store/etcd/gateway.js'
import { sharedRanges } from '../../../dist/store/etcd/ranges.js'
import type { EtcdResponse } from '../../../dist/store/etcd/wire.js'
import { plant } from '../../contract/store.contract.ts'
import { NO_ETCD } from '../../support/etcd.ts'
import { HEADER } from '../../support/etcd-fake.ts'
import { configured, fill, namesIn, openStore, testUnless } from '../../support/etcd-store.ts'

const testEtcd = testUnless(NO_ETCD)

function partOf(first: string): EtcdResponse {
  return { header: HEADER, kvs: [{ key: first }] }
}

/** Reads ranges without a cluster: each transaction is answered by the function. */
function shared(answer: (firsts: readonly string[]) => readonly EtcdResponse[] | Error) {
  const sent: string[] = []
  const share = sharedRanges(async (queries) => {
    const firsts = queries.map(({ first }) => first)
    sent.push(firsts.join(''))
    const parts = answer(firsts)
    if (parts instanceof Error) throw parts
    const responses = parts.map((response_range) => ({ response_range }))
    return firsts.length === 1 ? { ...parts[0] } : { responses }
  })
  const read = (first: string, isShared = true): Promise<string | undefined> =>
    share({ first, end: 'z', limit: 32, deadline: 1 }, isShared).then(
      ({ kvs }) => kvs?.[0]?.key,
      (error: unknown) => String(error),
    )
  const readEach = (firsts: string): Promise<readonly (string | undefined)[]> =>
    Promise.all([...firsts].map((first) => read(first)))
  return { sent, read, readEach }
}

test('ranges of one tick share calls of at most eight, and each has its part', async () => {
  const { sent, read, readEach } = shared((firsts) => firsts.map(partOf))
  const alone = read('z', false)
  assert.deepEqual(await readEach('abcdefghijklmnopqrs'), [...'abcdefghijklmnopqrs'])
  assert.equal(await alone, 'z')
  assert.deepEqual(sent, ['z', 'abcdefgh', 'ijklmnop', 'qrs'])
  // The next tick.
  assert.deepEqual(await readEach('ab'), ['a', 'b'])
  assert.deepEqual(sent.slice(4), ['ab'])
})

const failure = new Error('no answer')
const missing = new Error('etcd has not answered every range')
for (const [what, answer, error, sentAfter] of [
  ['that is too long is read one by one', new ResponseTooLong('long'), undefined, ['a', 'b', 'c']],
  ['that is refused is read one by one', new EtcdRefusal('no'), undefined, ['a', 'b', 'c']],
  ['without an answer fails all lists', failure, failure, []],
  ['without one of the answers is no empty list', [partOf('a')], missing, []],
] as const) {
  test(`a shared call ${what}`, async () => {
    const { sent, readEach } = shared((firsts) =>
      firsts.includes('b') ? answer : [partOf(firsts.join(''))],
    )
    const read = await readEach('abc')
    assert.deepEqual(read, error ? [error, error, error].map(String) : ['a', String(answer), 'c'])
    assert.deepEqual(sent, ['abc', ...sentAfter])
  })
}

for (const [what, owners, chars] of [
  ['are read together', 25, 0],
  ['are too long together', 8, 300_000],
] as const) {
  testEtcd(`lists that ${what} have their own plants alone`, async (t) => {
    const config = await configured()
    const lists = Array.from({ length: owners }, (_, owner) =>
      Array.from({ length: (owner * 7) % 4 }, (_, id) => `owner ${owner}, ${id}`.padEnd(chars)),
    )
    for (const [owner, names] of lists.entries()) {
      const plants = names.map((name, id) => plant(BigInt(id), name))
      await fill(config, `owner ${owner}`, plants)
    }
    const store = await openStore(t, config)
    const read = await Promise.all(lists.map((_, owner) => namesIn(store, `owner ${owner}`)))
    // Not deepEqual: describing a difference of megabytes takes it minutes.
    assert.ok(isDeepStrictEqual(read, lists))
  })
}
