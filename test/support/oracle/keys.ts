import { createPrivateKey, createPublicKey, type KeyObject, sign } from 'node:crypto'
import { type Key, signBytes } from '../keys.ts'
import { SECRET } from '../tokens.ts'

/*
 * All keys are fixed, so that what was sent can be sent again. None protects anything.
 */

type Json = Readonly<Record<string, unknown>>

/** The header that goes with a key and an algorithm, and how it signs. */
export type Signer = readonly [header: Json, sign: (input: string) => Buffer]

function number(value: bigint): string {
  const digits = value.toString(16)
  const even = digits.length % 2 === 0 ? digits : `0${digits}`
  return Buffer.from(even, 'hex').toString('base64url')
}

/** By Euclid's algorithm. */
function inverse(value: bigint, modulus: bigint): bigint {
  let [a, b, x, y] = [modulus, value % modulus, 0n, 1n]
  while (b !== 0n) [a, b, x, y] = [b, a % b, y, x - (a / b) * y]
  return (x + modulus) % modulus
}

/** Of 2048 bits, of two primes that can be written down. */
function rsaKey(): KeyObject {
  const [p, q, e] = [3n * 2n ** 1022n + 1037n, 2n ** 1024n - 105n, 65537n]
  const d = inverse(e, (p - 1n) * (q - 1n))
  const more = { dp: d % (p - 1n), dq: d % (q - 1n), qi: inverse(q, p) }
  const members = Object.entries({ n: p * q, e, d, p, q, ...more })
  const numbers = Object.fromEntries(members.map(([name, value]) => [name, number(value)]))
  return createPrivateKey({ format: 'jwk', key: { kty: 'RSA', ...numbers } })
}

/** From PKCS #8 (RFC 5208): the bytes before the key, and the bytes of the key. */
function pkcs8Key(start: string, bytes: Buffer): KeyObject {
  const key = Buffer.concat([Buffer.from(start, 'hex'), bytes])
  return createPrivateKey({ format: 'der', type: 'pkcs8', key })
}

// RFC 8410 §7; RFC 5915 §3, without the public key, which OpenSSL computes.
const ed25519 = pkcs8Key('302e020100300506032b657004220420', Buffer.alloc(32, 7))
const P256 = '3041020100301306072a8648ce3d020106082a8648ce3d030107042730250201010420'
const P384 = '304e020100301006072a8648ce3d020106052b81040022043730350201010430'
const P521 = '3060020100301006072a8648ce3d020106052b81040023044930470201010442'
const p256 = pkcs8Key(P256, Buffer.alloc(32, 9))
const p384 = pkcs8Key(P384, Buffer.alloc(48, 9))
const p521 = pkcs8Key(P521, Buffer.alloc(66, 1))
const rsa = rsaKey()

/** Signs by `alg`, which the header may name otherwise. */
function by(key: Key, header: Json, alg = String(header['alg'])): Signer {
  return [header, (input) => signBytes(alg, input, key)]
}

export const SECRET_SIGNERS: readonly Signer[] = [by(SECRET, { alg: 'HS256' })]

export const PUBLIC_SIGNERS: readonly Signer[] = [
  by(ed25519, { alg: 'EdDSA', kid: 'ed' }),
  by(p256, { alg: 'ES256', kid: 'ec' }),
  by(rsa, { alg: 'RS256', kid: 'rsa' }),
  by(rsa, { alg: 'PS256', kid: 'rsa' }),
  by(p384, { alg: 'ES384', kid: 'ec 384' }),
  by(p521, { alg: 'ES512', kid: 'ec 521' }),
  by(rsa, { alg: 'RS512', kid: 'rsa' }),
  by(rsa, { alg: 'PS384', kid: 'rsa' }),
  // One key of the set fits each algorithm.
  by(p256, { alg: 'ES256' }),
  by(rsa, { alg: 'RS256' }),
]

const KEYS = { ed: ed25519, ec: p256, rsa, 'ec 384': p384, 'ec 521': p521 }
const PUBLIC_KEYS = Object.entries(KEYS).map(([kid, key]) => {
  return { ...createPublicKey(key).export({ format: 'jwk' }), kid }
})
export const KEY_SET = JSON.stringify({ keys: PUBLIC_KEYS })

/**
 * Signers that no configuration trusts, whatever they name: public keys taken for secrets, a key
 * for another algorithm's, signatures of another form.
 */
export function forgers(trusted: readonly Signer[]): readonly Signer[] {
  const pem = String(createPublicKey(rsa).export({ type: 'spki', format: 'pem' }))
  const forged: Signer[] = [
    by('', { alg: 'HS256' }),
    by(SECRET, { alg: 'HS512' }, 'HS256'),
    by(SECRET, { alg: 'RS256' }, 'HS256'),
    by(SECRET, { alg: 'none' }, 'HS256'),
    [{ alg: 'none' }, () => Buffer.alloc(0)],
    by(pem, { alg: 'HS256', kid: 'rsa' }),
    by(JSON.stringify(PUBLIC_KEYS[0]), { alg: 'HS256', kid: 'ed' }),
    by(pem, { alg: 'RS256', kid: 'rsa' }, 'HS256'),
    by(rsa, { alg: 'RS256', kid: 'ec' }),
    by(rsa, { alg: 'RS256', kid: '' }),
    by(rsa, { alg: 'RS1', kid: 'rsa' }),
    [{ alg: 'ES256', kid: 'ec' }, (input) => sign('sha256', Buffer.from(input), p256)],
    by(p384, { alg: 'ES256', kid: 'ec', jwk: PUBLIC_KEYS[3] }),
  ]
  for (const [header, signs] of trusted) {
    const { length } = signs('')
    forged.push(
      [header, () => Buffer.alloc(length)],
      [header, () => Buffer.alloc(length, 255)],
      [header, () => Buffer.alloc(1)],
    )
    // The key itself, under the name of another algorithm.
    for (const [own, signer] of trusted)
      if (own['alg'] !== header['alg']) forged.push([header, signer])
  }
  return forged
}
