/*
 * Makes a release in release/: the npm package, a folder with its archive that needs only node, and
 * the bill of materials. The folder holds the compiled code and, of its packages, only the files
 * that the code imports. The same sources make the same bytes: order, owners, modes and times are
 * fixed.
 */
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  cpSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs'
import { createRequire, isBuiltin } from 'node:module'
import { dirname, join, relative, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { gzipSync } from 'node:zlib'

const ROOT = join(import.meta.dirname, '..')
const MAIN = join('dist', 'main.js')
/**
 * The time of every file, in seconds; by default the one that npm uses in its packages. See
 * https://reproducible-builds.org/specs/source-date-epoch/
 */
const TIME_SECONDS = Number(process.env['SOURCE_DATE_EPOCH'] || 499_162_500)

/** --sbom only prints the bill of materials. */
const { values } = parseArgs({
  options: {
    sbom: { type: 'boolean', default: false },
    out: { type: 'string', default: join(ROOT, 'release') },
  },
})
const RELEASE = resolve(values.out)
const FOLDER = join(RELEASE, 'plant-store')
// The project's own manifest, which has these members.
const manifest = JSON.parse(readFileSync(join(ROOT, 'package.json'), 'utf8')) as {
  readonly name: string
  readonly version: string
  readonly files: readonly string[]
}
/** What npm packs: what the manifest lists, and what npm adds to every package. */
const PACKED = ['package.json', 'LICENSE', 'README.md', ...manifest.files].flatMap((name) => {
  const path = join(ROOT, name)
  return statSync(path).isFile() ? [path] : filesOf(path)
})

if (values.sbom) process.stdout.write(billOfMaterials())
else makeRelease()

function makeRelease(): void {
  rmSync(RELEASE, { recursive: true, force: true })
  mkdirSync(RELEASE, { recursive: true })
  makeFolder()
  const base = join(RELEASE, `plant-store-${manifest.version}`)
  // Not by `npm pack`, which copies the modes of the checkout.
  writeFileSync(`${base}.tgz`, archive('package', ROOT, PACKED))
  writeFileSync(`${base}-node.tar.gz`, archive('plant-store', FOLDER, filesOf(FOLDER)))
  writeFileSync(`${base}.cdx.json`, billOfMaterials())
  for (const path of [...filesOf(RELEASE, false), FOLDER])
    console.log(`${relative(ROOT, path)}  ${sizeOf(path)} bytes`)
}

function makeFolder(): void {
  const own = PACKED.filter((path) => !path.endsWith('.d.ts'))
  const reached = closure(own)
  const packages = new Set([...reached].map(packageOf).filter((path) => path !== ROOT))
  for (const path of packages) {
    for (const name of readdirSync(path))
      if (name === 'package.json' || /^licen[cs]e/i.test(name)) reached.add(join(path, name))
  }
  for (const path of reached) cpSync(path, join(FOLDER, relative(ROOT, path)))
  for (const path of filesOf(FOLDER)) chmodSync(path, modeOf(relative(FOLDER, path)))
}

/**
 * CycloneDX from the lock file, by npm. Left out is what differs from run to run and from one npm
 * to another: a random serial number, the time, npm's version, and the properties. npm names us as
 * our folder is named.
 */
function billOfMaterials(): string {
  const command = 'sbom --package-lock-only --sbom-format cyclonedx --sbom-type application'
  const args = [...command.split(' '), '--omit', 'dev']
  const text = execFileSync('npm', args, { cwd: ROOT, encoding: 'utf8', stdio: 'pipe' })
  // CycloneDX 1.5, in which npm writes all of these members.
  const { serialNumber: _, ...bom } = JSON.parse(text) as {
    readonly serialNumber: string
    readonly metadata: { readonly component: object }
    readonly components: readonly object[]
  }
  const metadata = { component: { ...bom.metadata.component, name: manifest.name } }
  const components = [...bom.components, baseOfImage()]
  const kept = (name: string, value: unknown): unknown =>
    name === 'properties' ? undefined : value
  return `${JSON.stringify({ ...bom, metadata, components }, kept, 2)}\n`
}

/** What the image has Node and its libraries from: only who runs the image has them from there. */
function baseOfImage(): object {
  const dockerfile = readFileSync(join(ROOT, 'scripts/deploy/Dockerfile'), 'utf8')
  const [, name, version] = /^FROM (\S+):(\S+) AS/m.exec(dockerfile) ?? []
  const purl = `pkg:docker/${name}@${version}`
  return { type: 'container', 'bom-ref': purl, name, version, scope: 'optional', purl }
}

/** These files, everything that they import in turn, and the WebAssembly that any of it names. */
function closure(from: readonly string[]): Set<string> {
  const reached = new Set<string>()
  const waiting = [...from]
  for (let path = waiting.pop(); path !== undefined; path = waiting.pop()) {
    if (reached.has(path)) continue
    reached.add(path)
    if (!path.endsWith('.js')) continue
    const text = readFileSync(path, 'utf8')
    for (const [, name = ''] of text.matchAll(
      /(?:\bfrom|\bimport|\bimport\s*\(|\brequire\s*\()\s*["']([\w@.:/-]+)["']/g,
    )) {
      if (!isBuiltin(name)) waiting.push(createRequire(path).resolve(name))
    }
    for (const [, name = ''] of text.matchAll(/["']([\w.-]+\.wasm)["']/g))
      waiting.push(join(dirname(path), name))
  }
  return reached
}

/** The folder of a file's package. */
function packageOf(path: string): string {
  return /^.*[/\\]node_modules[/\\](?:@[^/\\]+[/\\])?[^/\\]+/.exec(path)?.[0] ?? ROOT
}

function filesOf(directory: string, recursive = true): string[] {
  return readdirSync(directory, { recursive, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => join(entry.parentPath, entry.name))
    .sort()
}

function sizeOf(path: string): number {
  return (statSync(path).isFile() ? [path] : filesOf(path)).reduce(
    (sum, file) => sum + statSync(file).size,
    0,
  )
}

function modeOf(name: string): number {
  return name === MAIN ? 0o755 : 0o644
}

/**
 * Files of a folder as a gzipped ustar archive (POSIX.1-1988): a header of 512 bytes, then the file
 * filled up to a multiple of 512.
 */
function archive(prefix: string, folder: string, paths: readonly string[]): Buffer {
  const blocks = paths
    .map((path) => relative(folder, path))
    .sort()
    .flatMap((name) => {
      const bytes = readFileSync(join(folder, name))
      return [
        header(`${prefix}/${name}`, bytes.length, modeOf(name)),
        bytes,
        Buffer.alloc(-bytes.length & 511),
      ]
    })
  return gzipSync(Buffer.concat([...blocks, Buffer.alloc(1024)]), { level: 9 })
}

function header(name: string, sizeBytes: number, mode: number): Buffer {
  if (Buffer.byteLength(name) > 100) throw new Error(`${name} is too long for the archive's header`)
  const block = Buffer.alloc(512)
  const octal = (value: number, digits: number): string => value.toString(8).padStart(digits, '0')
  const fields = [
    [0, name],
    [100, octal(mode, 7)],
    [108, octal(0, 7)],
    [116, octal(0, 7)],
    [124, octal(sizeBytes, 11)],
    [136, octal(TIME_SECONDS, 11)],
    [148, ' '.repeat(8)],
    [156, '0'],
    [257, 'ustar\x0000'],
  ] as const
  for (const [offset, text] of fields) block.write(text, offset, 'latin1')
  const checksum = block.reduce((sum, byte) => sum + byte, 0)
  block.write(`${octal(checksum, 6)}\0`, 148, 'latin1')
  return block
}
