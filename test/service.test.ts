import assert from 'node:assert/strict'
import { test } from 'node:test'
import { call, post } from './support/http.ts'
import { startService } from './support/service.ts'
import { token } from './support/tokens.ts'

test('a plant that was created is listed, to its owner alone', async (t) => {
  const { port } = await startService(t)
  const created = await post(port, { id: 7, name: 'Monstera', tag: 'indoor' })
  assert.deepEqual([created.status, created.json()], [200, { name: 'Monstera', tag: 'indoor' }])
  assert.deepEqual((await call(port)).json(), [{ name: 'Monstera', tag: 'indoor' }])
  assert.deepEqual((await call(port, { token: token('bob') })).json(), [])
})
