import assert from 'node:assert/strict'
import { test } from 'node:test'
import { readChunks } from '../../../dist/store/etcd/ranges.js'
import { plantKey, plantRange, plantValue } from '../../../dist/store/etcd/wire.js'

const PREFIX = 'plants/'

function entryOf(owner: string, id: bigint) {
  return { key: plantKey(PREFIX, owner, id), value: plantValue({ name: `${owner}'s` }) }
}

for (const [what, foreign] of [
  ['another owner with a name as long', entryOf('carol', 2n)],
  ['an owner whose name begins in the same way', entryOf('alice2', 2n)],
  ['a deployment inside the prefix', { ...entryOf('alice', 2n), key: deeper() }],
  ['letters as long as an id', byHand('a-name-by-hand-1')],
  ['an id in capital letters', byHand('80000000000000AB')],
] as const) {
  test(`a key of ${what} fails the list, and shows nothing`, async () => {
    const entries = [entryOf('alice', 1n), foreign]
    const range = plantRange(PREFIX, 'alice', undefined)
    const list = readChunks(async () => ({ kvs: entries }), range, Infinity)
    await assert.rejects(list.next(), /^Error: among an owner's keys etcd holds one that is not/)
  })
}

function byHand(id: string) {
  const key = Buffer.from(`${PREFIX}YWxpY2U/${id}`).toString('base64')
  return { ...entryOf('alice', 2n), key }
}

/** As a deployment writes it whose prefix is alice's keys in this one. */
function deeper(): string {
  const own = Buffer.from(plantKey(PREFIX, 'alice', 2n), 'base64').toString()
  return plantKey(own.slice(0, -16), 'bob', 1n)
}
