import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { cp, mkdir, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { ROOT } from '../support/release.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { PATIENCE_MS } from '../support/time.ts'

/*
 * Jest and Vitest run a program in a `vm` context: its Error is not that of Node's modules. The
 * fixtures use the service as a program does, and fail if an error is not recognized.
 */
const IN_VM = 'realms: in a vm context the service stores, refuses, compacts and stops'

test(IN_VM, { skip: LONG }, async () => {
  const cwd = await temporaryDirectory()
  await cp(join(ROOT, 'test/fixtures/realms'), cwd, { recursive: true })
  await mkdir(join(cwd, 'node_modules'))
  await symlink(ROOT, join(cwd, 'node_modules/plant-store'))
  const args = ['--experimental-import-meta-resolve', '--experimental-vm-modules', 'in-vm.mjs']
  const options = { cwd, timeout: PATIENCE_MS }
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, options)
  assert.match(stdout + stderr, /^done$/m)
})

test('realms: no file of src asks whether a value is instanceof a global class', () => {
  const globals = 'Error|\\w+Error|Uint8Array|ArrayBuffer|Array|Object|Date|URL|Map|Set'
  const wanted = new RegExp(`instanceof (?!ConfigError|UsageError|HttpError)(?:${globals})\\b`)
  const files = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  for (const file of files.filter((name) => name.endsWith('.ts')))
    assert.doesNotMatch(readFileSync(join(ROOT, 'src', file), 'utf8'), wanted, file)
})
