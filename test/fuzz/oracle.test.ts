import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import { test } from 'node:test'
import { ROUTES } from '../support/oracle/operations.ts'

test('oracle: it knows every path and method of the description', () => {
  const file = new URL('../../src/api/openapi.json', import.meta.url)
  // A test compares the file with the table of operations.
  const { paths } = JSON.parse(readFileSync(file, 'utf8')) as {
    readonly paths: Readonly<Record<string, object>>
  }
  const known = ROUTES.map(({ path, allow }) => [path, allow.toLowerCase().split(', ').sort()])
  const described = Object.entries(paths).map(([path, { ...methods }]) => {
    const names = Object.keys(methods).filter((method) => method !== 'parameters')
    return [path, names.sort()]
  })
  assert.deepEqual(known.sort(), described.sort())
})
