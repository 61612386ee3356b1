import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { cpSync, existsSync, readdirSync, readFileSync, statSync, symlinkSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { read } from '../support/documents.ts'
import { post } from '../support/http.ts'
import { command, run, startProcess } from '../support/process.ts'
import { listArchive, makeRelease, projectRelease, ROOT } from '../support/release.ts'
import { unpack, VERSION } from '../support/release.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { writeStore } from '../support/store-files.ts'
import { until } from '../support/time.ts'
import { holds } from '../store/sqljs/fixtures.ts'

const MAX_FOLDER_BYTES = 3 * 1024 * 1024
const directory = await temporaryDirectory()
const release = await projectRelease()

const packed = await listArchive(release.package)
/** Documents, and what goes with them. npm says below whether they are those of the manifest. */
const DOCUMENTS = packed.filter((name) => !name.startsWith('dist/'))

const OF_SQLJS = ['LICENSE', 'dist/sql-wasm.js', 'dist/sql-wasm.wasm', 'package.json'].map(
  (name) => `node_modules/sql.js/${name}`,
)

/** Every source file's path in dist/, without its ending. */
const modules = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  .filter((name) => name.endsWith('.ts') && !name.endsWith('.d.ts'))
  .map((name) => `dist/${name.slice(0, -'.ts'.length)}`)

const SAME = 'release: the same sources give the same bytes, whatever modes they have'

test(SAME, { skip: LONG }, async () => {
  const checkout = join(directory, 'checkout')
  const own = ['package-lock.json', 'dist', 'scripts/dist.ts', 'node_modules/jose']
  for (const name of [...DOCUMENTS, ...own, ...OF_SQLJS])
    cpSync(join(ROOT, name), join(checkout, name), { recursive: true })
  symlinkSync(join(ROOT, 'node_modules/tsx'), join(checkout, 'node_modules/tsx'))
  await promisify(execFile)('chmod', ['-R', 'g=,o=', checkout])
  const again = await makeRelease(join(directory, 'again'), checkout)
  assert.deepEqual(readFileSync(again.package), readFileSync(release.package))
  assert.deepEqual(readFileSync(again.archive), readFileSync(release.archive))
  assert.deepEqual(readFileSync(again.billOfMaterials), readFileSync(release.billOfMaterials))
})

test('release: the bill of materials has this package, two others, and the base image', () => {
  interface Component {
    readonly purl: string
    readonly hashes?: readonly { readonly content: string }[]
  }
  // CycloneDX, in which each component has these members; a missing one makes the test fail.
  const { metadata, components } = JSON.parse(readFileSync(release.billOfMaterials, 'utf8')) as {
    readonly metadata: { readonly component: Component }
    readonly components: readonly Component[]
  }
  // The project's own lock file, which has these members.
  const { version, packages } = JSON.parse(read('package-lock.json')) as {
    readonly version: string
    readonly packages: Readonly<Record<string, { version: string; integrity: string }>>
  }
  assert.equal(metadata.component.purl, `pkg:npm/plant-store@${version}`)
  const expected = ['jose', 'sql.js'].map((name) => {
    const { version: pinned = '', integrity = '' } = packages[`node_modules/${name}`] ?? {}
    const checksum = Buffer.from(integrity.replace('sha512-', ''), 'base64').toString('hex')
    return [`pkg:npm/${name}@${pinned}`, checksum]
  })
  const found = components.map(({ purl, hashes }) => [purl, hashes?.[0]?.content])
  const [, base] = /^FROM (\S+) AS/m.exec(read('scripts/deploy/Dockerfile')) ?? []
  const image = `pkg:docker/${base?.replace(':', '@')}`
  assert.deepEqual(found, [...expected, [image, undefined]])
})

test('release: every link in a packed document leads to a packed file', async () => {
  for (const file of [release.package, release.archive]) {
    const names = new Set(await listArchive(file))
    const documents = [...names].filter((name) =>
      /^[^/]*\.md$|^(?:scripts|src)\/.*\.md$/.test(name),
    )
    assert.ok(documents.includes('README.md') && documents.length >= 9)
    for (const document of documents) {
      const text = readFileSync(join(ROOT, document), 'utf8')
      for (const [, link = ''] of text.matchAll(/\]\((?!https?:)([^)#]+)/g))
        assert.ok(names.has(join(dirname(document), link)), `${document} names ${link}`)
    }
  }
})

test('release: the npm package has all of dist, and its install runs nothing', async () => {
  const compiled = modules.flatMap((name) => [`${name}.js`, `${name}.d.ts`])
  assert.deepEqual(packed, [...DOCUMENTS, ...compiled].sort())
  await unpack(release.package, directory)
  // npm's documented form of a manifest.
  const { scripts = {} } = JSON.parse(
    readFileSync(join(directory, 'package/package.json'), 'utf8'),
  ) as { readonly scripts?: object }
  for (const name of Object.keys(scripts))
    assert.doesNotMatch(name, /install|prepare|prepublish|dependencies/)
})

test('release: the npm package holds what npm would pack', { skip: LONG }, async () => {
  const args = ['pack', '--json', '--ignore-scripts', '--pack-destination', directory]
  const { stdout } = await promisify(execFile)('npm', args, { cwd: ROOT })
  // npm's documented report.
  const [{ filename }] = JSON.parse(stdout) as readonly [{ readonly filename: string }]
  assert.deepEqual(await listArchive(join(directory, filename)), packed)
  const unpacked = await temporaryDirectory()
  await unpack(join(directory, filename), unpacked)
  const manifest = readFileSync(join(unpacked, 'package/package.json'), 'utf8')
  assert.equal(manifest, read('package.json'))
})

test('release: the folder holds code, documents, and used files of both packages', async () => {
  const names = await listArchive(release.archive)
  const isForeign = (name: string): boolean => name.startsWith('node_modules/')
  const own = names.filter((name) => !isForeign(name))
  assert.deepEqual(own, [...DOCUMENTS, ...modules.map((name) => `${name}.js`)].sort())
  const foreign = names.filter(isForeign)
  const isOfJose = (name: string): boolean => /^[^/]+\/jose\/dist\/webapi\/.+\.js$/.test(name)
  assert.ok(foreign.some(isOfJose))
  const others = foreign.filter((name) => !isOfJose(name))
  const ofJose = ['LICENSE.md', 'package.json'].map((name) => `node_modules/jose/${name}`)
  assert.deepEqual(others, [...ofJose, ...OF_SQLJS])
  for (const name of foreign)
    assert.deepEqual(readFileSync(join(release.folder, name)), readFileSync(join(ROOT, name)))
  const sizes = names.map((name) => statSync(join(release.folder, name)).size)
  const bytes = sizes.reduce((sum, size) => sum + size)
  assert.ok(bytes < MAX_FOLDER_BYTES, `${bytes} bytes`)
})

test('release: the folder runs with node alone, and every command works', async (t) => {
  const elsewhere = await temporaryDirectory()
  for (let above = elsewhere; above !== dirname(above); above = dirname(above))
    assert.ok(!existsSync(join(above, 'node_modules')), above)
  await unpack(release.archive, elsewhere)
  const main = join(elsewhere, 'plant-store/dist/main.js')
  assert.ok(statSync(main).mode & 0o100, 'it can be started by its name')
  const [data, other, file] = ['data', 'other', 'plants.db'].map((name) => join(elsewhere, name))
  assert.ok(data && other && file)
  const runs = async (...args: string[]): Promise<string> => {
    const env = { PLANTS_DATA: args[0] === 'import' ? other : data }
    const { status, stdout, stderr } = await command(args, env, elsewhere, main)
    assert.deepEqual([status, stderr], [0, ''], args.join(' '))
    return stdout
  }
  const version = { status: 0, stdout: `${VERSION}\n`, stderr: '' }
  assert.deepEqual(await run(['--version'], {}, elsewhere, main), version)
  const description = readFileSync(join(elsewhere, 'plant-store/src/api/openapi.json'), 'utf8')
  assert.equal(await runs('openapi'), description)

  // An export that was put back: a thread, which has a file of its own, makes a snapshot of it.
  await writeStore(data, [['alice', '1', 'Fern']])
  const server = await startProcess(t, data, {}, ['serve', '--dev'], { main, cwd: elsewhere })
  const made = await runs('token', '--sub', 'alice')
  await until('it has compacted', () => server.output().includes('"message":"compacted"'))
  const plant = { id: 7, name: 'Monstera' }
  assert.equal((await post(server.port, plant, { token: made.trim() })).status, 200)
  assert.equal((await post(server.port, plant)).status, 401)
  assert.match(await runs('check'), /is sound: 2 plants /)
  assert.match(await runs('export', file), /^2 plants written/)
  assert.equal(await server.kill('SIGTERM'), 0)
  assert.match(await runs('import', file), /^2 plants read/)
  await holds(other, [{ name: 'Fern' }, { name: plant.name }])
})
